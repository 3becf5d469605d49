/** Warm calls of a handler in a micro-VM through the gateway, next to direct requests to the same port of the same guest. */
import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { isIPv4 } from 'node:net';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { tarOf } from '@releap/testing/oci';
import { type LoadResult, runLoad, writeScript } from '../api/wrk.ts';
import { buildServer } from '../previews/guest-server.ts';
import { until } from '../processes.ts';
import { MeasuredService } from '../service.ts';
import { interleave, summarize } from '../statistics.ts';
import { type Suite, suiteFolder } from '../suite.ts';

const NAME = 'guest';
/** Unlikely to be another guest's, when other services run on this machine. */
const PORT = 18_473;
const ADDED_P50_MS = 1;
/** A call at a time: its latency is that of the path, not of a queue. */
const ALONE = 1;
const SECONDS = 5;
const READY_MS = 600_000;
const PROBE_MS = 20_000;

export const functionsGuest: Suite = async ({ samples, progress, signal }) => {
  await using folder = await suiteFolder();
  progress('starting a service and its function');
  await using service = await MeasuredService.start({ warmPool: 0 });
  const { bootstrap } = service.service;
  const headers = { authorization: `Bearer ${bootstrap.api_key}` };
  const form = new FormData();
  form.set('name', NAME);
  form.set(
    'config',
    JSON.stringify({ port: PORT, mem_mib: 256, max_instances: 1, scaledown_window_s: 3_600 }),
  );
  const context = await tarOf([
    { name: 'server', mode: 0o755, content: await readFile(await buildServer(folder.path)) },
    {
      name: 'Dockerfile',
      content: `FROM scratch\nCOPY server /server\nENTRYPOINT ["/server", ":${PORT}"]\n`,
    },
  ]);
  form.set('context', new Blob([new Uint8Array(context)]));
  const deployed = await fetch(`${bootstrap.base_url}/fns`, { method: 'POST', headers, body: form });
  if (!deployed.ok) throw new Error(`the deploy answered ${deployed.status}: ${await deployed.text()}`);
  const gateway = (await service.service.toolboxUrl()).replace(/\/toolbox$/, '');
  await until(
    'the function answers',
    async () => (await fetch(`${gateway}/fns/${NAME}/invoke`, { method: 'POST', headers })).ok,
    READY_MS,
  );
  const address = await addressOfGuest();
  const paths = {
    gateway: { url: gateway, path: `/fns/${NAME}/invoke`, headers },
    direct: { url: `http://${address}:${PORT}`, path: '/', headers: {} },
  };
  const results: Record<string, LoadResult[]> = {};
  const contenders: Record<string, () => Promise<number>> = {};
  for (const [name, { path, ...load }] of Object.entries(paths)) {
    const script = join(folder.path, `${name}.lua`);
    await writeScript(script, { ...load, paths: [path], method: 'POST', body: 'x'.repeat(100) });
    contenders[name] = async () => {
      const result = await runLoad(script, load.url, SECONDS, ALONE);
      (results[name] ??= []).push(result);
      return result.p50;
    };
  }
  const taken = await interleave(contenders, {
    rounds: samples,
    warmUp: 1,
    signal,
    onRound: (round) => progress(`round ${round + 1}`),
  });
  const p50 = (name: string): number => summarize(taken[name] ?? []).p50;
  const added = p50('gateway') - p50('direct');
  return [
    {
      title: 'Warm calls of a handler in a guest',
      goal: `One call at a time through the gateway takes at most ${ADDED_P50_MS} ms more than a direct request to the same port of the same guest (p50).`,
      unit: 'median',
      rows: Object.keys(paths).map((what) => ({
        what,
        values: {
          'p50 ms': p50(what),
          'p99 ms': summarize((results[what] ?? []).map(({ p99 }) => p99)).p50,
          'requests/s': summarize((results[what] ?? []).map((one) => one.requestsPerSecond)).p50,
        },
      })),
      verdicts: [
        {
          what: 'added latency p50, in ms,',
          value: added,
          goal: `at most ${ADDED_P50_MS}`,
          met: added <= ADDED_P50_MS,
        },
      ],
      notes: [
        'Direct requests go to the address of the guest, as those of the gateway do: through its network namespace and its tap device.',
      ],
      samples: taken,
    },
  ];
};

/** The address of the one guest with a server on `PORT`, among those that this machine has routes to. */
async function addressOfGuest(): Promise<string> {
  const { stdout } = await promisify(execFile)('ip', ['-j', 'route'], { timeout: 10_000 });
  const addresses = (JSON.parse(stdout) as { dst: string }[])
    .map(({ dst }) => dst)
    .filter((dst) => isIPv4(dst));
  const found = await Promise.all(
    addresses.map((address) =>
      fetch(`http://${address}:${PORT}/`, { signal: AbortSignal.timeout(PROBE_MS) }).then(
        (answer) => (answer.ok ? [address] : []),
        () => [],
      ),
    ),
  );
  const [address, ...more] = found.flat();
  if (address === undefined || more.length > 0)
    throw new Error(`one address must have the guest, not ${found.flat().length} of ${addresses.length}`);
  return address;
}
