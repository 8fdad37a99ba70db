// Calls with parameters, as pg sends them: a line for each, its fields separated by tabs. The statement comes first, then
// its parameters: i:1 is a number, s:x a text, j:{} a document. Prints the first column of the rows of each, or the SQLSTATE.

import { createInterface } from "node:readline/promises";
import pg from "pg";

const db = new pg.Client({ connectionString: process.env.DATABASE_URL });
await db.connect();
for await (const line of createInterface({ input: process.stdin })) {
  const [sql, ...fields] = line.split("\t");
  const parameters = fields.map((field) => (field.startsWith("i:") ? Number(field.slice(2)) : field.slice(2)));
  try {
    const { rows } = await db.query({ text: sql, values: parameters, rowMode: "array" });
    console.log(rows.map(([first]) => String(first)).join(","));
  } catch (error) {
    console.log(error.code);
  }
}
await db.end();
