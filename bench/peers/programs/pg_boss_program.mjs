// pg-boss: batches of jobs, per-job handlers, notifications on.
import { PgBoss } from "pg-boss";
import * as kit from "./kit.mjs";

const BATCH = Number(process.env.BATCH ?? 5000);
const WORKERS = Number(process.env.CONCURRENCY ?? 2);
const working = kit.role === "work";
const boss = new PgBoss({
  connectionString: kit.url,
  max: 16,
  supervise: working || kit.role === "prepare",
  schedule: false,
  useListenNotify: working,
});
boss.on("error", (error) => console.error(error));
await boss.start();

if (kit.role === "prepare") {
  await boss.createQueue(kit.QUEUE, { notify: true });
  await boss.stop({ graceful: false });
  process.exit(0);
} else if (working) {
  const options = {
    batchSize: BATCH,
    localConcurrency: WORKERS,
    pollingIntervalSeconds: 0.5,
    notifyPollingIntervalSeconds: 0.5,
    burstWhenBatchFull: true, // fetch again at once while batches come back full
  };
  await boss.work(kit.QUEUE, options, async (jobs) => {
    for (const job of jobs) kit.began(job.data.body);
  });
} else {
  await kit.produce({
    chunk: 5000,
    tasks: 64,
    pushMany: (bodies) => boss.insert(kit.QUEUE, bodies.map((body) => ({ data: { body } }))),
    push: (body) => boss.send(kit.QUEUE, { body }),
  });
}
