// A Headgate worker: one stream, any number of jobs at a time. README.md tells how to run it.
import { randomInt } from 'node:crypto';
import { hostname } from 'node:os';
import grpc from '@grpc/grpc-js';
import { handlers } from './handlers.mjs';
import { WorkerService, heldOf, jobsOf, keyOf, keysOf, linesOf, outcomesOf } from './wire.mjs';

const HELLO_WITHIN_MS = 10_000;
const LOCKED_MS = 1_000;
const LINES = 200; // of the log of a job, in one frame
const LEVELS = ['DEBUG', 'INFO', 'WARNING', 'ERROR', 'CRITICAL'];
const BACKOFF_MS = { first: 100, most: 10_000 };
const CHANNEL = {
  'grpc.keepalive_time_ms': 10_000, // a server that vanished without a word is missed after 20 s
  'grpc.keepalive_timeout_ms': 10_000,
  'grpc.use_local_subchannel_pool': 1, // or each new connection would wait out grpc's own backoff as well
  'grpc.max_receive_message_length': 32 << 20,
};
// Trying again would not help: a bad token, a topic it may not take, another process that goes by the same worker id.
const HOPELESS = [grpc.status.UNAUTHENTICATED, grpc.status.PERMISSION_DENIED, grpc.status.ABORTED];

class Worker {
  // What this worker answers for, from delivery to receipt: "id/epoch" → { job, abort, outcome }. It outlives the
  // connection: the next server is told of it, so nothing in here is run again because a server died.
  #held = new Map();
  #running = 0; // handlers at work, at most `concurrency`
  #finishing = false; // stop() was called
  #seq = 0;
  #seqAtLastBeat = 0;
  #incarnation = randomInt(1, 2 ** 32); // tells this process from others that go by its id
  #resumed = false;
  #firstConnected = 0; // when the first hello was answered
  #failures = 0;
  #wake = () => {};
  // These belong to one connection:
  #call = null; // set when hello was answered, null again when nothing more may be sent
  #asked = 0; // credit: jobs asked for that did not come yet
  #sent = new Map(); // outcomes without a receipt: seq → key in #held
  #draining = false; // this server is about to stop

  constructor(options) {
    Object.assign(this, options); // servers, token, workerId, concurrency, graceMs, credentials
  }

  // Works until stop(), over as many connections as it takes.
  async run() {
    for (let turn = 0; !this.#finished; turn++) {
      const { code, details } = await this.#connection(this.servers[turn % this.servers.length]);
      if (this.#finished) return;
      if (HOPELESS.includes(code)) throw new Error(`refused: ${details}`);
      // Jittered, or all workers of a restarted server would come back in the same instant.
      const wait = Math.random() * Math.min(BACKOFF_MS.most, BACKOFF_MS.first * 2 ** this.#failures++);
      console.log(`disconnected (${details || grpc.status[code]}), again in ${Math.round(wait)} ms`);
      await new Promise((resolve) => setTimeout((this.#wake = resolve), wait));
    }
  }

  // Finishes what has started, hands back what still runs when the grace is over; then run() returns.
  stop() {
    this.#finishing = true;
    setTimeout(() => {
      for (const [key, { abort, outcome }] of this.#held) {
        abort.abort();
        if (!outcome) this.#report(key, { abandon: {} });
      }
    }, this.graceMs).unref();
    // Past the grace, and no server to give the rest back to: their leases will run out.
    setTimeout(() => process.exit(1), this.graceMs + 5_000).unref();
    this.#leave();
    this.#wake();
  }

  get #finished() {
    return this.#finishing && this.#held.size === 0;
  }

  // One connection, from hello to the status it ends with.
  #connection(server) {
    const client = new WorkerService(server, this.credentials, CHANNEL);
    const metadata = new grpc.Metadata();
    if (this.token) metadata.set('authorization', `Bearer ${this.token}`);
    const call = client.Work(metadata);
    const { workerId } = this;
    const [incarnation, resumed] = [this.#incarnation, this.#resumed];
    // A stop is for processes that were connected when it was asked: this tells that we are one of them.
    const connectedMs = resumed ? Math.floor(performance.now() - this.#firstConnected) : 0;
    const who = { workerId, client: 'node-example/0.1.0', incarnation };
    call.write({ hello: { ...who, held: this.#all(), resumed, connectedMs } });
    const impatience = setTimeout(() => call.cancel(), HELLO_WITHIN_MS);
    let beats;
    call.on('data', (frame) => {
      if (frame.helloAck) {
        clearTimeout(impatience);
        beats = setInterval(() => this.#beat(), frame.helloAck.beatSeconds * 1000);
        this.#welcome(call, frame.helloAck);
      }
      if (frame.receipts) this.#settle(frame.receipts);
      if (frame.jobs) this.#take(jobsOf(frame.jobs));
      if (frame.cancel) for (const key of keysOf(frame.cancel)) this.#held.get(key)?.abort.abort();
      if (frame.lost) this.#drop(frame.lost);
      if (frame.error) console.error(`server: ${frame.error.code}: ${frame.error.message}`);
      if (frame.drain) this.#draining = true;
      if (frame.stop && !this.#finishing) {
        console.log(`asked to stop by ${frame.stop.by}: ${frame.stop.reason}`);
        this.stop(); // as SIGTERM does
      }
      if ((this.#finishing || this.#draining) && this.#held.size === 0) this.#leave();
    });
    call.on('error', () => {}); // the status tells the same
    return new Promise((resolve) => {
      call.on('status', (status) => {
        clearTimeout(impatience);
        clearInterval(beats);
        this.#call = null;
        client.close();
        resolve(status);
      });
    });
  }

  #welcome(call, ack) {
    console.log(`connected to ${ack.instance} as ${ack.workerId}, resumed=${this.#resumed} held=${this.#held.size}`);
    if (!this.#resumed) this.#firstConnected = performance.now();
    [this.#call, this.#asked, this.#draining, this.#resumed, this.#failures] = [call, 0, false, true, 0];
    this.#sent.clear();
    if (ack.lost) this.#drop(ack.lost);
    // Repeating an outcome is safe: the server knows it by the job's id and epoch.
    for (const [key, { outcome }] of this.#held) if (outcome) this.#report(key, outcome);
    this.#ask();
  }

  #take(jobs) {
    this.#asked -= jobs.length;
    for (const job of jobs) {
      const key = keyOf(job);
      if (this.#held.has(key)) continue; // delivered twice
      this.#held.set(key, { job, abort: new AbortController(), outcome: null });
      if (this.#finishing || this.#draining) this.#report(key, { abandon: {} });
      else this.#work(key, this.#held.get(key));
    }
  }

  async #work(key, held) {
    const { job, abort } = held;
    console.log(`started ${job.topic} ${job.id} epoch=${job.epoch} attempt=${job.attempt}`);
    this.#running++;
    const lines = []; // the newest ones of the log of this attempt; all are counted
    let seq = 0;
    const log = (text, level = 'INFO') => {
      // Another level, or a text that is none, may throw when the frame is encoded: before the outcome is sent.
      const known = LEVELS.includes(level) ? level : 'INFO';
      lines.push({ seq: ++seq, atUs: Date.now() * 1000, level: `LOG_LEVEL_${known}`, text: String(text) });
      if (lines.length > LINES) lines.shift();
    };
    const outcome = await outcomeOf(job, abort.signal, log);
    this.#running--;
    console.log(`ended ${job.topic} ${job.id} epoch=${job.epoch} ${Object.keys(outcome)[0]}`);
    // It may have been lost, or given back, while the handler was still at it.
    if (this.#held.has(key) && !held.outcome) {
      // Before the outcome: the server takes lines of jobs that are held. They are not acknowledged, and not sent again.
      if (lines.length) this.#call?.write({ logs: [linesOf(job, lines)] });
      this.#report(key, outcome);
    }
    this.#ask();
  }

  // Sends an outcome, or keeps it for the next connection. (A frame could carry many; one each is easier to follow.)
  #report(key, outcome) {
    const held = this.#held.get(key);
    held.outcome = outcome;
    if (!this.#call) return;
    this.#sent.set(++this.#seq, key);
    this.#call.write({ outcomes: outcomesOf(this.#seq, held.job, outcome) });
  }

  #settle({ seq, exceptions: [receipt] }) {
    const key = this.#sent.get(seq);
    this.#sent.delete(seq);
    const held = this.#held.get(key);
    if (!held) return;
    if (receipt && receipt.code !== 'RECEIPT_APPLIED') console.log(`${key}: ${receipt.code} ${receipt.message}`);
    if (receipt?.code === 'RECEIPT_INVALID' && !held.outcome.failed) {
      // Refused as such (a result over the limit, say), and the job is still ours: it must not hang.
      this.#report(key, { failed: { type: 'InvalidOutcome', message: receipt.message } });
    } else if (receipt?.code === 'RECEIPT_LOCKED') {
      // Another transaction holds the job's row, so nothing was decided: the job is still ours, and so is its outcome.
      setTimeout(() => this.#held.get(key) === held && this.#report(key, held.outcome), LOCKED_MS);
    } else {
      this.#held.delete(key);
    }
  }

  #drop(lost) {
    for (const key of keysOf(lost)) {
      this.#held.get(key)?.abort.abort();
      this.#held.delete(key); // so its outcome, if one comes, is not sent
    }
  }

  #beat() {
    if (!this.#call) return;
    this.#call.write({ beat: { held: this.#all() } });
    // Outcomes the server had no room for were answered by an error, which names no seq: they are sent again.
    for (const [seq, key] of [...this.#sent]) {
      if (seq > this.#seqAtLastBeat) continue;
      this.#sent.delete(seq);
      if (this.#held.has(key)) this.#report(key, this.#held.get(key).outcome);
    }
    this.#seqAtLastBeat = this.#seq;
  }

  #ask() {
    const count = this.concurrency - this.#running - this.#asked;
    if (!this.#call || this.#finishing || this.#draining || count <= 0) return;
    this.#asked += count;
    this.#call.write({ ready: { topics: Object.keys(handlers), count } });
  }

  // Closing the stream is what takes the credit back: while handlers are at work, the next one is opened without any.
  // A job that crosses this on its way is held like the others, and given back over the next stream.
  #leave() {
    this.#call?.end();
    this.#call = null;
  }

  #all() {
    return heldOf([...this.#held.values()].map(({ job }) => job));
  }
}

async function outcomeOf(job, signal, log) {
  try {
    const outcome = await handlers[job.topic](job, signal, log);
    if (!outcome) throw new TypeError(`the handler of ${job.topic} returned no outcome`); // never a silent success
    return outcome;
  } catch (error) {
    const { name = 'Error', message = String(error), stack = '' } = error ?? {};
    return { failed: { type: name, message, traceback: stack } };
  }
}

const { env } = process;
const worker = new Worker({
  servers: (env.HEADGATE_SERVERS ?? '127.0.0.1:7070').split(','),
  token: env.HEADGATE_TOKEN ?? '',
  workerId: env.HEADGATE_WORKER_ID ?? `node-${hostname()}-${process.pid}`,
  concurrency: Number(env.HEADGATE_CONCURRENCY ?? 10),
  graceMs: Number(env.HEADGATE_GRACE_SECONDS ?? 30) * 1000,
  credentials: env.HEADGATE_TLS ? grpc.credentials.createSsl() : grpc.credentials.createInsecure(),
});
for (const name of ['SIGTERM', 'SIGINT']) process.once(name, () => worker.stop());
try {
  await worker.run();
  console.log('stopped');
} catch (error) {
  console.error(error.message);
  process.exit(1);
}
