// What every measured program in JavaScript shares; the same roles as kit.py.
import fs from "node:fs";
import path from "node:path";
import readline from "node:readline";

export const BODY = "x".repeat(100);
export const QUEUE = "bench";
export const [role, url, folder, ...rest] = process.argv.slice(2);

/** A setting of bench/peers/catalog.py. */
export function setting(name) {
  if (!/^\d+$/.test(process.env[name] ?? "")) throw new Error(`${name} must be set to a number`);
  return Number(process.env[name]);
}

const now = () => process.hrtime.bigint(); // CLOCK_MONOTONIC, as Python's time.monotonic_ns()
const seconds = () => Number(now()) / 1e9;
const record = new BigInt64Array(3); // handled, when the first began, when the last began
let file;
let planned = false;

/** To be called by every handler, first thing. */
export function began(body) {
  const at = now();
  if (file === undefined) {
    file = fs.openSync(path.join(folder, `${process.pid}.tally`), "w");
    record[1] = at;
  }
  record[0] += 1n;
  record[2] = at;
  if (!planned) {
    planned = true;
    setImmediate(() => {
      planned = false;
      fs.writeSync(file, record, 0, 24, 0);
    });
  }
  if (body[0] !== "x")
    fs.appendFileSync(path.join(folder, `${process.pid}.waits`), `${at - BigInt(body.trim())}\n`);
}

/** Play a producer's role: {tasks, pushMany(bodies), push(body)}. */
export async function produce(producer) {
  const [count, number] = [Number(rest[0]), Number(rest[1])];
  const lines = readline.createInterface({ input: process.stdin });
  console.log("ready");
  await new Promise((resolve) => lines.once("line", resolve));
  const started = seconds();
  const deadline = started + number;
  let sent = 0;
  if (role === "paced") {
    for (; sent < count; sent++) {
      await producer.push(String(now()).padStart(100));
      await new Promise((resolve) => setTimeout(resolve, number * 1000));
    }
  } else if (role === "bulk") {
    const chunk = setting("CHUNK");
    const some = async () => {
      while (sent < count && seconds() < deadline) {
        const size = Math.min(chunk, count - sent);
        sent += size;
        await producer.pushMany(new Array(size).fill(BODY));
      }
    };
    await Promise.all(Array.from({ length: setting("PARALLEL") }, some));
  } else {
    const some = async () => {
      while (sent < count && seconds() < deadline) {
        sent++;
        await producer.push(BODY);
      }
    };
    await Promise.all(Array.from({ length: producer.tasks }, some));
  }
  console.log(JSON.stringify({ started, ended: seconds(), sent }));
  process.exit(0);
}
