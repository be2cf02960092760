// What this worker can do: one async function per topic. The job is a plain object:
//
//   { id, topic, payload (Buffer), epoch, attempt, maxAttempts, priority, createdUs, leaseUntilUs, headers, schedule,
//     deadlineUs }
//
// A handler returns one outcome, in the words of jobs.proto, or throws, which is { failed } with the error's type, text
// and stack. `signal` is aborted when the job is to be cancelled or is no longer ours. `log(text, level)` adds a line to the
// log of the job: `headgate job logs ID`.
import { setTimeout as sleep } from 'node:timers/promises';

export const handlers = {
  // Gives the payload back as the result.
  echo: async (job) => ({ completed: { result: job.payload } }),

  // Fails every time, so it is retried until its attempts are used up, and is then dead.
  fail: async (job, signal, log) => {
    log(`no luck in attempt ${job.attempt}`, 'WARNING');
    throw new RangeError(`${job.payload} (attempt ${job.attempt} of ${job.maxAttempts})`);
  },

  // Asks once to be run again, after as many milliseconds as the payload says; that costs an attempt.
  nack: async (job) =>
    job.attempt === 1 ? { nack: { delayMs: Number(job.payload), reason: 'the printer is warming up' } } : completed(job),

  // Gives the job back once; that costs no attempt, so the next run is the first attempt again, under a new epoch.
  'abandon-once': async (job) => (firstTime(job) ? { abandon: {} } : completed(job)),

  // Wants to wait once; that costs no attempt either.
  snooze: async (job) => (firstTime(job) ? { snooze: { delayMs: 100 } } : completed(job)),

  // Works for as many milliseconds as the payload says. Cancelled, it throws the signal's AbortError.
  slow: async (job, signal) => {
    await sleep(Number(job.payload), undefined, { signal });
    return completed(job);
  },
};

// Ids seen by this process. The epoch only fences: it grows at every run and begins anywhere, so it counts nothing.
const seen = new Set();
const firstTime = ({ id }) => !seen.has(id) && Boolean(seen.add(id));

const completed = (job) => ({ completed: { result: Buffer.from(`attempt ${job.attempt}`) } });
