/** What one organization waits while another one floods: creates, builds, trials of versions, invocations, calls that wait. */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Caller } from '@releap/testing/callers';
import type { SuiteResult } from '../report.ts';
import { inRounds, summarize, timed } from '../statistics.ts';
import { suiteFolder, type Suite, type SuiteOptions } from '../suite.ts';
import { HOST, type ModelCloud, type Organization, startModelCloud } from '../tenancy/model-cloud.ts';

/** Of p50 and of p95, with the flood relative to without. */
const GOAL = 2;
/** Operations of the organization that is measured, in each half of a round. */
const OPERATIONS = 10;
/** All five together then end within eight minutes, also on a busy machine. */
const KIND_MAX_MS = 75_000;
/** Of those that are measured, and of a flood: its polls are to cost little. */
const POLL_MS = 5;
const FLOOD_POLL_MS = 200;
const READY_MS = 60_000;
const PAYLOADS = 25;
const CALLED = 'called';
const ALONE = 'alone';
const FLOODED = 'while another organization floods';

interface Kind {
  what: string;
  /** How the flood looks, for the reader. */
  flood: string;
  /** At the same time, of the organization that is measured. */
  callers: number;
  /** Operations of the flood at the same time, far more than there are places. */
  flooders: number;
  /** @returns milliseconds from the request to its end. @param worker which of those at the same time */
  run: (org: Organization, worker: number) => Promise<number>;
  /** One of the flood, where that is another one. */
  floodWith?: (org: Organization, worker: number) => Promise<unknown>;
}

/** The body of the answer. @throws when it is no success */
async function call<T>(api: Caller, method: string, path: string, body?: unknown): Promise<T> {
  const answer = await api(method, path, body);
  if (answer.status >= 300) throw new Error(`${method} ${path} answered ${answer.status}: ${answer.text}`);
  return answer.body as T;
}

async function until(isDone: () => Promise<boolean>, pollMs: number): Promise<void> {
  for (const end = performance.now() + READY_MS; !(await isDone()); await sleep(pollMs))
    if (performance.now() > end) throw new Error(`an operation took longer than ${READY_MS} ms`);
}

const projectOf = ({ projects }: Organization, worker: number): Caller =>
  projects[worker % projects.length] as Caller;

async function create(org: Organization, worker: number): Promise<number> {
  const api = projectOf(org, worker);
  let id = '';
  const taken = await timed(async () => {
    ({ vm_id: id } = await call<{ vm_id: string }>(api, 'POST', '/vms', {
      image: 'busybox',
      cpu: 1,
      mem_mib: 256,
    }));
    const path = `/vms/${id}?wait_exact=running&timeout_ms=${READY_MS}`;
    const { status } = await call<{ status: string }>(api, 'GET', path);
    if (status !== 'running') throw new Error(`a sandbox is ${status}`);
  });
  await call(api, 'DELETE', `/vms/${id}`);
  await call(api, 'GET', `/vms/${id}?wait_exact=deleted&timeout_ms=${READY_MS}`);
  return taken;
}

const build = (pollMs: number) => (org: Organization, worker: number) =>
  timed(async () => {
    const api = projectOf(org, worker);
    const source = { type: 'dockerfile', dockerfile: 'FROM busybox\nRUN true' };
    const { job_id: job } = await call<{ job_id: string }>(api, 'POST', '/images', {
      name: `image-${worker}`,
      source,
    });
    await until(async () => {
      const { status, error } = await call<{ status: string; error: string }>(api, 'GET', `/jobs/${job}`);
      if (status === 'failed') throw new Error(`a build has failed: ${error}`);
      return status === 'done';
    }, pollMs);
  });

async function deploy(
  api: Caller,
  name: string,
  cloud: ModelCloud,
  pollMs: number,
  settings: object = {},
): Promise<void> {
  const { version } = await call<{ version: number }>(api, 'POST', '/fns', {
    name,
    image: 'busybox',
    port: cloud.handlerPort,
    activate: 'when_ready',
    max_instances: 1,
    ...settings,
  });
  await until(async () => {
    const { versions } = await call<{
      versions: { version: number; template_state: string; template_error: string }[];
    }>(api, 'GET', `/fns/${name}/versions`);
    const own = versions.find((one) => one.version === version);
    if (own?.template_state === 'failed') throw new Error(`a version has failed: ${own.template_error}`);
    return own?.template_state === 'published';
  }, pollMs);
}

const ended = (api: Caller, id: string, pollMs: number): Promise<void> =>
  until(async () => {
    const { done, status, error } = await call<{ done: boolean; status: string; error: string }>(
      api,
      'GET',
      `/invocations/${id}`,
    );
    if (done && status !== 'succeeded') throw new Error(`an invocation is ${status}: ${error}`);
    return done;
  }, pollMs);

const kindsOf = (cloud: ModelCloud): Kind[] => [
  {
    what: 'create, until it runs',
    flood: `100 creates at a time on a host with ${HOST.cores} places`,
    callers: 1,
    flooders: 100,
    run: create,
  },
  {
    what: 'build of an image',
    flood: '24 builds at a time, of 4 projects, on a host that runs 4',
    callers: 1,
    flooders: 24,
    run: build(POLL_MS),
    floodWith: build(FLOOD_POLL_MS),
  },
  {
    what: 'deploy, until its trial is over',
    flood: '24 deploys at a time, of which a server tries 8',
    callers: 1,
    flooders: 24,
    run: (org, worker) => timed(() => deploy(projectOf(org, worker), `deployed-${worker}`, cloud, POLL_MS)),
    floodWith: (org, worker) => deploy(projectOf(org, worker), `deployed-${worker}`, cloud, FLOOD_POLL_MS),
  },
  {
    what: 'invocation without waiting, until it has ended',
    flood: `8 maps of ${PAYLOADS} payloads at a time, and one instance that serves one`,
    callers: 1,
    flooders: 8,
    run: (org) =>
      timed(async () => {
        const api = projectOf(org, 0);
        const { invocation_id: id } = await call<{ invocation_id: string }>(
          api,
          'POST',
          `/fns/${CALLED}/spawn`,
          {},
        );
        await ended(api, id, POLL_MS);
      }),
    async floodWith(org) {
      const api = projectOf(org, 0);
      const { invocation_ids: ids } = await call<{ invocation_ids: string[] }>(
        api,
        'POST',
        `/fns/${CALLED}/map`,
        { payloads: Array.from({ length: PAYLOADS }, (_, n) => n) },
      );
      await ended(api, ids.at(-1) ?? '', FLOOD_POLL_MS);
    },
  },
  {
    what: 'call that waits for an instance which serves 3 others',
    flood: '200 calls at a time of one instance',
    callers: 4,
    flooders: 200,
    run: ({ gateway }) => timed(() => call(gateway, 'POST', `/fns/${CALLED}/invoke`, {})),
  },
];

export const fairShare: Suite = async function* (options) {
  options.progress('starting a control plane, a gateway and a host without guests');
  await using folder = await suiteFolder();
  await using cloud = await startModelCloud(folder.path);
  const [measured, flooder] = [await cloud.organization(), await cloud.organization()];
  for (const kind of kindsOf(cloud)) {
    // Not before: their instances would take places from the creates.
    if (kind.what.startsWith('invocation'))
      for (const { projects } of [measured, flooder])
        await deploy(projects[0] as Caller, CALLED, cloud, POLL_MS, { scaledown_window_s: 600 });
    yield await measure(kind, measured, flooder, options);
  }
};

async function measure(
  kind: Kind,
  measured: Organization,
  flooder: Organization,
  { samples, progress, signal }: SuiteOptions,
): Promise<SuiteResult> {
  const { what, flood, callers, run } = kind;
  const rates: number[] = [];
  const operate = async (note: (taken: number) => void): Promise<void> => {
    await Promise.all(
      Array.from({ length: callers }, async (_, worker) => {
        for (let done = 0; done < OPERATIONS; done++) {
          signal.throwIfAborted();
          note(await run(measured, worker));
        }
      }),
    );
  };
  const taken = await inRounds(
    {
      rounds: samples,
      maxMs: KIND_MAX_MS,
      warmUp: Math.min(1, samples - 1),
      signal,
      onRound: (round) => progress(`${what}, round ${round + 1}`),
    },
    async (note) => {
      await operate((ms) => note(ALONE, ms));
      await using running = await startFlood(kind, flooder);
      await operate((ms) => note(FLOODED, ms));
      rates.push(running.rate());
    },
  );
  const [alone, flooded] = [summarize(taken[ALONE] ?? []), summarize(taken[FLOODED] ?? [])];
  const verdict = (percentile: 'p50' | 'p95') => {
    const value = flooded[percentile] / alone[percentile];
    return {
      what: `${percentile} while another organization floods, relative to alone,`,
      value,
      goal: `at most ${GOAL}`,
      met: value <= GOAL,
    };
  };
  return {
    title: `Fair share: ${what}`,
    goal: `The flood of another organization, ${flood}, makes this take at most ${GOAL} times as long (p50 and p95).`,
    unit: 'ms',
    rows: [
      { what: ALONE, values: { ...alone } },
      { what: FLOODED, values: { ...flooded } },
    ],
    verdicts: [verdict('p50'), verdict('p95')],
    notes: [`the flood itself: ${summarize(rates).p50.toFixed(1)} operations a second`],
    samples: taken,
  };
}

/** Resolves when the flood has filled its share: each of its workers has done one operation. The end of its last one ends it. */
async function startFlood(
  { flooders, run, floodWith = run }: Kind,
  org: Organization,
): Promise<AsyncDisposable & { rate(): number }> {
  const stopped = new AbortController();
  let done = 0;
  const first: Promise<void>[] = [];
  const workers = Array.from({ length: flooders }, async (_, worker) => {
    const once = Promise.withResolvers<void>();
    first.push(once.promise);
    try {
      while (!stopped.signal.aborted) {
        await floodWith(org, worker);
        done++;
        once.resolve();
      }
    } finally {
      once.resolve();
    }
  });
  const all = Promise.all(workers);
  // Its error is that of the flood's end.
  all.catch(() => stopped.abort());
  await Promise.all(first);
  const [since, before] = [performance.now(), done];
  return {
    rate: () => ((done - before) * 1000) / (performance.now() - since),
    async [Symbol.asyncDispose]() {
      stopped.abort();
      await all;
    },
  };
}
