/** Previews through the service, next to nginx as a proxy to the same server: one in a guest, and one on this machine. */
import { once } from 'node:events';
import { get, type IncomingMessage } from 'node:http';
import { join } from 'node:path';
import type { PreviewLink } from '@releap/contract';
import { type LoadResult, runLoad, writeScript } from '../api/wrk.ts';
import { engineMemory, redirectLane, routedLane } from '../previews/engine.ts';
import { buildServer, PORT, startGuestServer, startNativeServer } from '../previews/guest-server.ts';
import { openIdleSockets } from '../previews/idle-sockets.ts';
import { startNginx } from '../previews/nginx.ts';
import type { SuiteResult, Verdict } from '../report.ts';
import { MeasuredService } from '../service.ts';
import { interleave, type RoundOptions, type Samples, summarize, timed } from '../statistics.ts';
import { type Suite, suiteFolder } from '../suite.ts';

const CONNECTIONS = 64;
const SECONDS = 5;
/** A request at a time: its latency is that of the path, not of a queue. */
const ALONE = 1;
const STREAM_MIB = 1024;
/** Each takes more than half a minute. */
const ROUNDS_MAX = 5;
const PREVIEW = 'preview';
const NGINX = 'nginx';
const IDLE_SOCKETS = 5_000;
const GOALS = { requests: 0.8, stream: 0.7, addedP50: 0.5, addedP99: 2, idleMib: 200 };

interface Server {
  url: string;
  headers: Record<string, string>;
}

export const previews: Suite = async ({ samples, progress, signal }) => {
  await using folder = await suiteFolder();
  progress('starting a service, and a server in a sandbox of it');
  const program = await buildServer(folder.path);
  await using service = await MeasuredService.start({ warmPool: 0 });
  const { home } = service.service;
  const id = await service.createAndRun({ cpu: 1, mem_mib: 512 });
  await startGuestServer(service, id, program);
  const { vm_ip: address } = await service.call<{ vm_ip: string }>('GET', `/vms/${id}`);
  const link = await service.call<PreviewLink>('POST', `/vms/${id}/preview-links`, { port: PORT });
  const { host, port } = new URL(link.url);
  const preview: Server = {
    url: `http://127.0.0.1:${port}`,
    headers: { Host: host, 'X-Service-Preview-Token': link.token },
  };
  const routed = (): Promise<string> => routedLane(home, () => download(`${preview.url}/`, preview.headers));
  const rounds = Math.min(samples, ROUNDS_MAX);
  const options = {
    rounds,
    warmUp: 0,
    signal,
    onRound: (round: number) => progress(`round ${round + 1} of ${rounds}`),
  };

  await using nginx = await startNginx(join(folder.path, 'nginx'), `${address}:${PORT}`);
  const inGuest = await compare(
    'in a guest',
    folder.path,
    { preview, nginx: nginx.url, prepare: routed },
    options,
  );

  progress('the same with a server of this machine');
  await using native = await startNativeServer(program);
  await using nativeNginx = await startNginx(join(folder.path, 'nginx-native'), `127.0.0.1:${native.port}`);
  // Before each measurement: the gateway may have made the route anew.
  const toNative = async (): Promise<void> => await redirectLane(home, await routed(), native.port);
  const here = await compare(
    'here',
    folder.path,
    { preview, nginx: nativeNginx.url, prepare: toNative },
    options,
  );

  progress(`${IDLE_SOCKETS} idle WebSockets`);
  await toNative();
  const before = await engineMemory(home);
  let idle: number;
  {
    using _open = await openIdleSockets(preview.url, preview.headers, IDLE_SOCKETS);
    idle = await engineMemory(home);
  }
  await service.remove(id);

  const comparison = (where: string, { rows, verdicts, taken }: Comparison): SuiteResult => ({
    title: `Previews of a server ${where}`,
    goal:
      `A private preview, next to nginx that proxies to the same server ${where}. At ${CONNECTIONS} connections at least ` +
      `${GOALS.requests} of its requests a second, ${STREAM_MIB} MiB at ${GOALS.stream} of its rate.`,
    unit: 'median',
    rows,
    verdicts,
    notes: ['nginx has one worker, and the engine of previews a quarter of the cores, at least one.'],
    samples: taken,
  });
  const guest = comparison('in a guest', inGuest);
  guest.notes?.push('The server is in a guest: without KVM it is emulated, and may be what bounds both.');
  const onHost = comparison('on the host', here);
  onHost.notes?.push('The engine is led to it by its admin socket: its rules are those of a sandbox.');
  return [
    guest,
    onHost,
    {
      title: 'Idle WebSockets of previews',
      goal: `${IDLE_SOCKETS} idle WebSockets through the engine in at most ${GOALS.idleMib} MiB.`,
      unit: 'MiB of the engine',
      rows: [{ what: `${IDLE_SOCKETS} WebSockets`, values: { before, with: idle } }],
      verdicts: [verdict('memory of the engine, in MiB,', idle, GOALS.idleMib, 'at most')],
    },
  ];
};

interface Comparison {
  rows: SuiteResult['rows'];
  verdicts: Verdict[];
  taken: Samples;
}

/** @param where for names of files */
async function compare(
  where: string,
  folder: string,
  { preview, nginx, prepare }: { preview: Server; nginx: string; prepare: () => Promise<unknown> },
  options: RoundOptions,
): Promise<Comparison> {
  const servers: Record<string, Server> = { [PREVIEW]: preview, [NGINX]: { url: nginx, headers: {} } };
  const busy: Record<string, LoadResult[]> = {};
  const alone: Record<string, LoadResult[]> = {};
  const contenders: Record<string, () => Promise<number>> = {};
  for (const [name, server] of Object.entries(servers)) {
    const script = join(folder, `${name}-${where.replaceAll(' ', '-')}.lua`);
    await writeScript(script, { ...server, paths: ['/'], method: 'GET' });
    for (const [results, connections] of [
      [busy, CONNECTIONS],
      [alone, ALONE],
    ] as const) {
      contenders[`${connections} connections, ${name}`] = async () => {
        await prepare();
        const result = await runLoad(script, server.url, SECONDS, connections);
        (results[name] ??= []).push(result);
        return result.requestsPerSecond;
      };
    }
    contenders[`${STREAM_MIB} MiB, ${name}`] = async () => {
      await prepare();
      const ms = await timed(() => download(`${server.url}/stream/${STREAM_MIB}`, server.headers));
      return STREAM_MIB / (ms / 1000);
    };
  }
  const taken = await interleave(contenders, options);
  const median = (what: string, name: string): number => summarize(taken[`${what}, ${name}`] ?? []).p50;
  const ratio = (what: string): number => median(what, PREVIEW) / median(what, NGINX);
  const latency = (name: string, percentile: 'p50' | 'p99'): number =>
    summarize((alone[name] ?? []).map((result) => result[percentile])).p50;
  const added = (percentile: 'p50' | 'p99'): number =>
    latency(PREVIEW, percentile) - latency(NGINX, percentile);
  return {
    taken,
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
      verdict(
        'requests a second, relative to nginx,',
        ratio(`${CONNECTIONS} connections`),
        GOALS.requests,
        'at least',
      ),
      verdict('rate of a stream, relative to nginx,', ratio(`${STREAM_MIB} MiB`), GOALS.stream, 'at least'),
      verdict('added latency p50, in ms,', added('p50'), GOALS.addedP50, 'at most'),
      verdict('added latency p99, in ms,', added('p99'), GOALS.addedP99, 'at most'),
    ],
  };
}

function verdict(what: string, value: number, goal: number, bound: 'at least' | 'at most'): Verdict {
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
