// Graphile Worker, with the settings of its own performance page.
import { makeWorkerUtils, run, runMigrations } from "graphile-worker";
import * as kit from "./kit.mjs";

const CONCURRENCY = Number(process.env.CONCURRENCY ?? 100);
const LOCAL_QUEUE = Number(process.env.BATCH ?? 2000);
const connection = (size) => ({ worker: { connectionString: kit.url, maxPoolSize: size } });

if (kit.role === "prepare") {
  await runMigrations({ preset: connection(2) });
  process.exit(0);
} else if (kit.role === "work") {
  const preset = {
    worker: {
      connectionString: kit.url,
      concurrentJobs: CONCURRENCY,
      maxPoolSize: CONCURRENCY + 1,
      pollInterval: 2000,
      localQueue: { size: LOCAL_QUEUE },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
    },
  };
  await run({ preset, taskList: { nothing: async (payload) => kit.began(payload.body) } });
} else {
  const utils = await makeWorkerUtils({ preset: connection(16) });
  await kit.produce({
    chunk: 5000,
    tasks: 64,
    pushMany: (bodies) => utils.addJobs(bodies.map((body) => ({ identifier: "nothing", payload: { body } }))),
    push: (body) => utils.addJob("nothing", { body }),
  });
}
