// TypeORM saves an entity that was loaded before its row was deleted, and inserts it again: save() of TypeORM on pg.
//
// Takes the server from DATABASE_URL, the fence of the holder as the argument, and a line on standard input when the row may be
// gone. Prints "loaded", then "saved" or the SQLSTATE. The entity knows nothing of fences.
import { once } from "node:events";
import { createInterface } from "node:readline";
import { DataSource, EntitySchema } from "typeorm";

const Order = new EntitySchema({
    name: "Order",
    tableName: "orders",
    columns: { id: { type: Number, primary: true }, status: { type: String } },
});
const database = new DataSource({ type: "postgres", url: process.env.DATABASE_URL, entities: [Order] });
await database.initialize();
const order = await database.manager.findOneByOrFail(Order, { id: 7 });
console.log("loaded");
const input = createInterface({ input: process.stdin });
await once(input, "line");
order.status = "late";
try {
    await database.transaction(async (manager) => {
        await manager.query("SELECT fence_use($1)", [process.argv[2]]);
        await manager.save(Order, order);
    });
    console.log("saved");
} catch (error) {
    console.log(error.driverError?.code ?? error);
}
input.close();
await database.destroy();
