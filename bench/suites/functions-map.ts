/** A map of 1,000 payloads, next to what the same instances serve to callers that wait. */
import { setTimeout as sleep } from 'node:timers/promises';
import { until } from '../processes.ts';
import { type SuiteResult, summaryRows } from '../report.ts';
import { MeasuredService } from '../service.ts';
import { interleave, summarize, timed } from '../statistics.ts';
import type { Suite } from '../suite.ts';

const NAME = 'sleeper';
const PAYLOADS = 1000;
/** Of a quick run, which only shows that all works. */
const QUICK_PAYLOADS = 50;
const INSTANCES = 2;
const CONCURRENCY = 8;
const HANDLER_SECONDS = 0.2;
const POLL_MS = 100;
/** Longest start of an emulated Python on a busy machine. */
const READY_MS = 300_000;
/** Share of what the instances can do. */
const GOAL = 0.8;

/** Keeps connections alive and waits, so that the processors are left to the service. */
const HANDLER = `
import os, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    disable_nagle_algorithm = True
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get('content-length', 0)))
        time.sleep(${HANDLER_SECONDS})
        self.send_response(200)
        self.send_header('content-length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass
ThreadingHTTPServer(('', int(os.environ['RLP_FN_PORT'])), Handler).serve_forever()
`;

const WAITING = 'callers that wait, as many at a time as the instances serve';
const MAP = 'one map';

export const functionsMap: Suite = async ({ samples, progress, signal }): Promise<SuiteResult[]> => {
  const payloads = samples === 1 ? QUICK_PAYLOADS : PAYLOADS;
  progress('starting a service and a function');
  await using service = await MeasuredService.start({ warmPool: 0, images: ['busybox', 'debian'] });
  const { bootstrap } = service.service;
  const gateway = (await service.service.toolboxUrl()).replace(/\/toolbox$/, '');
  await service.call('POST', '/fns', {
    name: NAME,
    image: 'debian',
    handler: ['python3', '-c', HANDLER],
    max_concurrency: CONCURRENCY,
    max_instances: INSTANCES,
    scaledown_window_s: 3600,
  });
  await until(
    'the version can serve',
    async () => {
      const { versions } = await service.call<{
        versions: { template_state: string; template_error: string }[];
      }>('GET', `/fns/${NAME}/versions`);
      if (versions[0]?.template_state === 'failed') throw new Error(versions[0].template_error);
      return versions[0]?.template_state === 'published';
    },
    READY_MS,
  );

  const invoke = async (n: number): Promise<void> => {
    const answer = await fetch(`${gateway}/fns/${NAME}/invoke`, {
      method: 'POST',
      headers: { authorization: `Bearer ${bootstrap.api_key}` },
      body: JSON.stringify(n),
    });
    const text = await answer.text();
    if (text !== String(n)) throw new Error(`the function answered ${answer.status}: ${text}`);
  };
  const wait = async (): Promise<number> => {
    let next = 0;
    const caller = async (): Promise<void> => {
      while (next < payloads) {
        signal.throwIfAborted();
        await invoke(next++);
      }
    };
    const ms = await timed(() => Promise.all(Array.from({ length: INSTANCES * CONCURRENCY }, caller)));
    return (payloads / ms) * 1000;
  };
  const map = async (): Promise<number> => {
    const body = { payloads: Array.from({ length: payloads }, (_, n) => n) };
    const ms = await timed(async () => {
      const { invocation_ids: ids } = await service.call<{ invocation_ids: string[] }>(
        'POST',
        `/fns/${NAME}/map`,
        body,
      );
      // They are started in their order, so the last ones are among the last to end.
      for (const id of ids.toReversed()) {
        for (;;) {
          signal.throwIfAborted();
          const one = await service.call<{ done: boolean; status: string; error: string }>(
            'GET',
            `/invocations/${id}`,
          );
          if (one.done && one.status !== 'succeeded')
            throw new Error(`an invocation is ${one.status}: ${one.error}`);
          if (one.done) break;
          await sleep(POLL_MS);
        }
        // Each look at one that has ended costs the service time that is measured: those at the end are enough.
        if (id === ids.at(-INSTANCES * CONCURRENCY * 2)) break;
      }
    });
    return (payloads / ms) * 1000;
  };
  progress('starting the instances');
  await wait();
  const rates = await interleave(
    { [WAITING]: wait, [MAP]: map },
    {
      rounds: samples === 1 ? 1 : Math.min(samples, 5),
      warmUp: 0,
      signal,
      onRound: (round) => progress(`round ${round + 1}`),
    },
  );
  const share = summarize(rates[MAP] ?? []).p50 / summarize(rates[WAITING] ?? []).p50;
  return [
    {
      title: `A map of ${payloads} payloads`,
      goal: `A map runs at ${GOAL} or more of what the instances of the function can do.`,
      unit: 'calls/s',
      rows: summaryRows(rates),
      verdicts: [
        {
          what: 'the rate of a map, as a share of that of callers that wait',
          value: share,
          goal: `at least ${GOAL}`,
          met: share >= GOAL,
        },
      ],
      notes: [
        `${INSTANCES} instances serve ${CONCURRENCY} calls each; a handler waits for ${HANDLER_SECONDS * 1000} ms, so ${
          (INSTANCES * CONCURRENCY) / HANDLER_SECONDS
        } calls/s is the most there can be.`,
      ],
      samples: rates,
    },
  ];
};
