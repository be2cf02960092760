// pg-boss: batches of jobs, per-job handlers, notifications on.
import { PgBoss } from "pg-boss";
import * as kit from "./kit.mjs";

const working = kit.role === "work";
const boss = new PgBoss({
  connectionString: kit.url,
  max: working ? 16 : kit.setting("POOL"),
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
    batchSize: kit.setting("BATCH"),
    localConcurrency: kit.setting("CONCURRENCY"),
    pollingIntervalSeconds: 0.5,
    notifyPollingIntervalSeconds: 0.5,
    burstWhenBatchFull: true, // fetch again at once while batches come back full
  };
  await boss.work(kit.QUEUE, options, async (jobs) => {
    for (const job of jobs) kit.began(job.data.body);
  });
} else {
  await kit.produce({
    tasks: 64,
    pushMany: (bodies) => boss.insert(kit.QUEUE, bodies.map((body) => ({ data: { body } }))),
    push: (body) => boss.send(kit.QUEUE, { body }),
  });
}
