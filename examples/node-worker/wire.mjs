// The wire contract as JavaScript sees it: the service, straight from the proto files, and parallel arrays as objects.
import { fileURLToPath } from 'node:url';
import grpc from '@grpc/grpc-js';
import protoLoader from '@grpc/proto-loader';

const folder = process.env.HEADGATE_PROTO ?? fileURLToPath(new URL('../../proto', import.meta.url));
const definition = protoLoader.loadSync('headgate/v1/worker.proto', {
  includeDirs: [folder],
  longs: Number, // microseconds since 1970 fit a double until the year 2255, epochs stay below 2^53
  enums: String,
  arrays: true, // an absent list is [], an absent message null
  objects: true,
  defaults: true,
});

export const { WorkerService } = grpc.loadPackageDefinition(definition).headgate.v1;

export const uuidOf = (bytes) => bytes.toString('hex').replace(/(.{8})(.{4})(.{4})(.{4})(.{12})/, '$1-$2-$3-$4-$5');
export const bytesOf = (uuid) => Buffer.from(uuid.replaceAll('-', ''), 'hex');

// A job is known by id and epoch together: another epoch is another run.
export const keyOf = ({ id, epoch }) => `${id}/${epoch}`;
export const keysOf = ({ ids, epochs }) => ids.map((id, index) => keyOf({ id: uuidOf(id), epoch: epochs[index] }));
export const heldOf = (jobs) => ({ ids: jobs.map((job) => bytesOf(job.id)), epochs: jobs.map((job) => job.epoch) });

export function jobsOf(jobs) {
  return jobs.ids.map((id, index) => ({
    id: uuidOf(id),
    topic: jobs.topicNames[jobs.topics[index] ?? 0],
    payload: jobs.payloads[index],
    epoch: jobs.epochs[index],
    attempt: jobs.attempts[index],
    maxAttempts: jobs.maxAttempts[index],
    priority: jobs.priorities[index] ?? 0,
    createdUs: jobs.createdUs[index],
    leaseUntilUs: jobs.leaseUntilUs,
    headers: jobs.headers.find((one) => one.index === index)?.headers ?? {},
    schedule: jobs.headers.find((one) => one.index === index)?.schedule ?? "",
    deadlineUs: jobs.headers.find((one) => one.index === index)?.deadlineUs ?? 0,
  }));
}

export const linesOf = ({ id, epoch, attempt }, lines) => ({ id: bytesOf(id), epoch, attempt, lines });

// The outcome of one job as the frame's part: completions as arrays, everything else as messages.
export function outcomesOf(seq, job, outcome) {
  const [id, epoch] = [bytesOf(job.id), job.epoch];
  if (!outcome.completed) return { seq, others: [{ id, epoch, ...outcome }] };
  return { seq, ids: [id], epochs: [epoch], results: [outcome.completed.result ?? Buffer.alloc(0)] };
}
