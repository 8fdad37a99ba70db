// The same with postgres.js, which asks the server for the types of parameters, and makes the text of a document itself.

import { createInterface } from "node:readline/promises";
import postgres from "postgres";

const db = postgres(process.env.DATABASE_URL, { max: 1 });
for await (const line of createInterface({ input: process.stdin })) {
  const [sql, ...fields] = line.split("\t");
  const read = { i: Number, j: JSON.parse, s: String };
  const parameters = fields.map((field) => read[field[0]](field.slice(2)));
  try {
    const rows = await db.unsafe(sql, parameters).values();
    console.log(rows.map(([first]) => String(first)).join(","));
  } catch (error) {
    console.log(error.code);
  }
}
await db.end();
