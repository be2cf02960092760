// Graphile Worker, with the settings of its own performance page.
import { makeWorkerUtils, run, runMigrations } from "graphile-worker";
import * as kit from "./kit.mjs";

const WORKER_POOL = 20; // completions are batched: it does not use more
const connection = (size) => ({ worker: { connectionString: kit.url, maxPoolSize: size } });

if (kit.role === "prepare") {
  await runMigrations({ preset: connection(2) });
  process.exit(0);
} else if (kit.role === "work") {
  const preset = {
    worker: {
      connectionString: kit.url,
      concurrentJobs: kit.setting("CONCURRENCY"),
      maxPoolSize: WORKER_POOL,
      pollInterval: 2000,
      localQueue: { size: kit.setting("BATCH") },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
    },
  };
  await run({ preset, taskList: { nothing: async (payload) => kit.began(payload.body) } });
} else {
  const utils = await makeWorkerUtils({ preset: connection(kit.setting("POOL")) });
  await kit.produce({
    tasks: 64,
    pushMany: (bodies) => utils.addJobs(bodies.map((body) => ({ identifier: "nothing", payload: { body } }))),
    push: (body) => utils.addJob("nothing", { body }),
  });
}
