/** Warm calls of a function through a gateway, next to nginx as a proxy to the same server, and to that server itself. */
import { join } from 'node:path';
import { newToken } from '@releap/contract';
import { type LoadResult, runLoad, writeScript } from '../api/wrk.ts';
import { startLoneGateway } from '../functions/lone-gateway.ts';
import { buildServer, startNativeServer } from '../previews/guest-server.ts';
import { startNginx } from '../previews/nginx.ts';
import { interleave, summarize } from '../statistics.ts';
import { type Suite, suiteFolder } from '../suite.ts';

const CONNECTIONS = 64;
/** A call at a time: its latency is that of the path, not of a queue. */
const ALONE = 1;
const SECONDS = 3;
const BODY = 'x'.repeat(100);
const GOALS = { requests: 2_000, ratio: 0.7, addedP50: 1 };

export const functions: Suite = async ({ samples, progress, signal }) => {
  await using folder = await suiteFolder();
  progress('building the handler');
  await using server = await startNativeServer(await buildServer(folder.path));
  await using nginx = await startNginx(join(folder.path, 'nginx'), `127.0.0.1:${server.port}`);
  await using gateway = await startLoneGateway(folder.path, server.port, CONNECTIONS);
  const headers = { authorization: `Bearer ${newToken('apiKey')}` };
  const paths = {
    gateway: { url: gateway.url, paths: ['/fns/measured/invoke'], headers },
    nginx: { url: nginx.url, paths: ['/'], headers: {} },
    direct: { url: `http://127.0.0.1:${server.port}`, paths: ['/'], headers: {} },
  };
  const busy: Record<string, LoadResult[]> = {};
  const alone: Record<string, LoadResult[]> = {};
  const contenders: Record<string, () => Promise<number>> = {};
  for (const [name, load] of Object.entries(paths)) {
    const script = join(folder.path, `${name}.lua`);
    await writeScript(script, { ...load, method: 'POST', body: BODY });
    for (const [results, connections] of [
      [busy, CONNECTIONS],
      [alone, ALONE],
    ] as const)
      contenders[`${connections} connections, ${name}`] = async () => {
        const result = await runLoad(script, load.url, SECONDS, connections);
        (results[name] ??= []).push(result);
        return result.requestsPerSecond;
      };
  }
  const taken = await interleave(contenders, {
    rounds: samples,
    warmUp: 1,
    signal,
    onRound: (round) => progress(`round ${round + 1}`),
  });
  const rate = (name: string): number =>
    summarize((busy[name] ?? []).map((one) => one.requestsPerSecond)).p50;
  const latency = (name: string): number => summarize((alone[name] ?? []).map((one) => one.p50)).p50;
  const ratio = rate('gateway') / rate('nginx');
  const added = latency('gateway') - latency('direct');
  return [
    {
      title: 'Warm calls of a function',
      goal:
        `A call with a key of a handler on this machine. At ${CONNECTIONS} connections at least ${GOALS.requests} a second on one ` +
        `core, or ${GOALS.ratio} of nginx; one at a time at most ${GOALS.addedP50} ms more than the handler itself (p50).`,
      unit: 'median',
      rows: Object.keys(paths).map((what) => ({
        what,
        values: {
          [`requests/s at ${CONNECTIONS}`]: rate(what),
          'p99 ms': summarize((busy[what] ?? []).map(({ p99 }) => p99)).p50,
          'p50 ms alone': latency(what),
          'p99 ms alone': summarize((alone[what] ?? []).map(({ p99 }) => p99)).p50,
        },
      })),
      verdicts: [
        {
          what: 'calls a second',
          value: rate('gateway'),
          goal: `at least ${GOALS.requests}, or ${GOALS.ratio} of nginx`,
          met: rate('gateway') >= GOALS.requests || ratio >= GOALS.ratio,
        },
        {
          what: 'calls a second, relative to nginx',
          value: ratio,
          goal: `at least ${GOALS.ratio}, or the above`,
          met: rate('gateway') >= GOALS.requests || ratio >= GOALS.ratio,
        },
        {
          what: 'added latency p50, in ms,',
          value: added,
          goal: `at most ${GOALS.addedP50}`,
          met: added <= GOALS.addedP50,
        },
      ],
      notes: [
        'The gateway is one thread; it decides, queues and records each call. nginx has one worker, and only passes on.',
        'The control plane is a script: warm calls do not ask it.',
      ],
      samples: taken,
    },
  ];
};
