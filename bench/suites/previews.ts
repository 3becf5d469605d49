/** Previews through the gateway, next to nginx as a proxy to the same server in the same guest. */
import { once } from 'node:events';
import { get, type IncomingMessage } from 'node:http';
import { join } from 'node:path';
import type { PreviewLink } from '@releap/contract';
import { type LoadResult, runLoad, writeScript } from '../api/wrk.ts';
import { PORT, startGuestServer } from '../previews/guest-server.ts';
import { startNginx } from '../previews/nginx.ts';
import type { SuiteResult } from '../report.ts';
import { MeasuredService } from '../service.ts';
import { interleave, summarize, timed } from '../statistics.ts';
import { type Suite, suiteFolder } from '../suite.ts';

const CONNECTIONS = 64;
const SECONDS = 5;
/** A request at a time: its latency is that of the path, not of a queue. */
const ALONE = 1;
const STREAM_MIB = 1024;
/** Each takes more than half a minute. */
const ROUNDS_MAX = 5;
const GATEWAY = 'preview gateway';
const NGINX = 'nginx';
const GOALS = { requests: 0.8, stream: 0.7, addedP50: 0.5, addedP99: 2 };

export const previews: Suite = async ({ samples, progress, signal }) => {
  await using folder = await suiteFolder();
  progress('starting a service, and a server in a sandbox of it');
  await using service = await MeasuredService.start({ warmPool: 0 });
  const id = await service.createAndRun({ cpu: 1, mem_mib: 512 });
  await startGuestServer(service, id, folder.path);
  const { vm_ip: address } = await service.call<{ vm_ip: string }>('GET', `/vms/${id}`);
  const link = await service.call<PreviewLink>('POST', `/vms/${id}/preview-links`, { port: PORT });
  await using nginx = await startNginx(join(folder.path, 'nginx'), `${address}:${PORT}`);
  const { host, port } = new URL(link.url);
  const headers = { Host: host, 'X-Service-Preview-Token': link.token };
  const servers = {
    [GATEWAY]: { url: `http://127.0.0.1:${port}`, headers },
    [NGINX]: { url: nginx.url, headers: {} },
  };

  const rounds = Math.min(samples, ROUNDS_MAX);
  const busy: Record<string, LoadResult[]> = {};
  const alone: Record<string, LoadResult[]> = {};
  const contenders: Record<string, () => Promise<number>> = {};
  for (const [name, server] of Object.entries(servers)) {
    const script = join(folder.path, `${name.replace(' ', '-')}.lua`);
    await writeScript(script, { ...server, paths: ['/'], method: 'GET' });
    for (const [results, connections] of [
      [busy, CONNECTIONS],
      [alone, ALONE],
    ] as const) {
      contenders[`${connections} connections, ${name}`] = async () => {
        const result = await runLoad(script, server.url, SECONDS, connections);
        (results[name] ??= []).push(result);
        return result.requestsPerSecond;
      };
    }
    contenders[`${STREAM_MIB} MiB, ${name}`] = async () => {
      const ms = await timed(() => download(`${server.url}/stream/${STREAM_MIB}`, server.headers));
      return STREAM_MIB / (ms / 1000);
    };
  }
  const taken = await interleave(contenders, {
    rounds,
    warmUp: 0,
    signal,
    onRound: (round) => progress(`round ${round + 1} of ${rounds}`),
  });
  await service.remove(id);

  const median = (what: string, name: string): number => summarize(taken[`${what}, ${name}`] ?? []).p50;
  const ratio = (what: string): number => median(what, GATEWAY) / median(what, NGINX);
  const latency = (name: string, percentile: 'p50' | 'p99'): number =>
    summarize((alone[name] ?? []).map((result) => result[percentile])).p50;
  const added = (percentile: 'p50' | 'p99'): number =>
    latency(GATEWAY, percentile) - latency(NGINX, percentile);
  const requests = ratio(`${CONNECTIONS} connections`);
  const stream = ratio(`${STREAM_MIB} MiB`);
  const result: SuiteResult = {
    title: 'Previews',
    goal:
      `A private preview, next to nginx that proxies to the same server in the same guest. At ${CONNECTIONS} connections at ` +
      `least ${GOALS.requests} of its requests a second, ${STREAM_MIB} MiB at ${GOALS.stream} of its rate.`,
    unit: 'median',
    rows: Object.keys(servers).map((what) => ({
      what,
      values: {
        [`requests/s at ${CONNECTIONS}`]: median(`${CONNECTIONS} connections`, what),
        'p99 ms': summarize((busy[what] ?? []).map(({ p99 }) => p99)).p50,
        'p50 ms alone': latency(what, 'p50'),
        'p99 ms alone': latency(what, 'p99'),
        'MiB/s': median(`${STREAM_MIB} MiB`, what),
      },
    })),
    verdicts: [
      verdict('requests a second, relative to nginx,', requests, GOALS.requests, 'at least'),
      verdict('rate of a stream, relative to nginx,', stream, GOALS.stream, 'at least'),
      verdict('added latency p50, in ms,', added('p50'), GOALS.addedP50, 'at most'),
      verdict('added latency p99, in ms,', added('p99'), GOALS.addedP99, 'at most'),
    ],
    notes: [
      'The server is in a guest: without KVM it is emulated, and may be what bounds both.',
      'nginx has one worker. The gateway and the runner, which both pass the bytes on, have one thread each.',
    ],
    samples: taken,
  };
  return [result];
};

function verdict(what: string, value: number, goal: number, bound: 'at least' | 'at most') {
  return { what, value, goal: `${bound} ${goal}`, met: bound === 'at least' ? value >= goal : value <= goal };
}

/** Reads a response to its end. */
async function download(url: string, headers: Record<string, string>): Promise<void> {
  const response = await new Promise<IncomingMessage>((resolve, reject) => {
    get(url, { headers, agent: false }, resolve).on('error', reject);
  });
  if (response.statusCode !== 200) throw new Error(`${url} answered ${response.statusCode}`);
  response.resume();
  await once(response, 'end');
}
