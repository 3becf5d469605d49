/** Requests with a secret through the interceptor, beside the least that a proxy which ends TLS does in Node. */
import { spawn, type ChildProcess } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { readFile, writeFile } from 'node:fs/promises';
import type { IncomingMessage } from 'node:http';
import { Agent, request } from 'node:https';
import { connect } from 'node:net';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { connect as tlsConnect } from 'node:tls';
import type { Duplex } from 'node:stream';
import { testAuthority } from '@releap/testing/certificates';
import { eventually } from '@releap/testing/eventually';
import { pino } from 'pino';
import { CgroupTree } from '../../packages/runner/src/cgroup/cgroup-tree.ts';
import { Interceptor } from '../../packages/runner/src/network/intercept/interceptor.ts';
import { type SuiteResult, summaryRows } from '../report.ts';
import { type Samples, summarize } from '../statistics.ts';
import { type Suite, suiteFolder } from '../suite.ts';

const HOST = 'api.example';
const TOKEN = `rlps_${'b3nch'.repeat(9).slice(0, 43)}`;
const CONNECTIONS = 32;
const REQUESTS = 2_000;
const WARM_UP_REQUESTS = 500;
const GOAL = 500;
/** Clock ticks of /proc, sysconf(_SC_CLK_TCK). */
const TICKS = 100;
const UID = 0x6ffe_0020;

const INTERCEPTOR = 'interceptor: a placeholder in a header field';
const FLOOR = 'a proxy in Node that changes nothing';

export const intercept: Suite = async ({ samples, progress, signal }) => {
  await using folder = await suiteFolder();
  await using stack = new AsyncDisposableStack();
  const at = (name: string): string => join(folder.path, name);
  const [guests, servers] = [await testAuthority('guests'), await testAuthority('servers')];
  const { key, cert } = await servers.issue(HOST);
  await writeFile(at('key'), key);
  await writeFile(at('cert'), cert);
  const server = await start(stack, 'server.ts', at('key'), at('cert'));
  const floor = await start(stack, 'floor.ts', at('key'), at('cert'), String(server.port));
  const cgroups = await CgroupTree.open(folder.path);
  stack.defer(() => cgroups.close());
  const interceptor = new Interceptor({
    cgroups,
    dir: at('intercept'),
    guestSocket: at('guests/guest.sock'),
    uid: UID,
    netdUid: UID + 1,
    extraCa: servers.certificate,
    onDomains: () => undefined,
    log: pino({ level: 'silent' }),
    source: {
      certificate: (csr) => guests.signIntermediate(csr),
      changed: (known) =>
        Promise.resolve({
          sandboxes: known
            .filter(({ revision }) => revision === undefined)
            .map(({ id }) => ({ id, revision: '1', secrets: [secret()] })),
          more: false,
        }),
    },
  });
  stack.defer(() => interceptor.stop());
  interceptor.put('vm', { KEY: TOKEN });
  const handover = JSON.stringify({
    vm_id: 'vm',
    host: HOST,
    tls: true,
    address: '127.0.0.1',
    port: server.port,
  });
  const handedOver = (): Duplex => {
    const socket = connect(at('guests/guest.sock'));
    socket.write(`${handover}\n`);
    return socket;
  };
  await eventually('the interceptor serves', () => load(1, handedOver, guests.certificate).then(() => true));
  const pid = (await interceptor.pid()) ?? 0;
  const contenders = {
    [INTERCEPTOR]: { pid, open: handedOver, ca: guests.certificate },
    [FLOOR]: { pid: floor.pid, open: () => connect(floor.port, '127.0.0.1'), ca: servers.certificate },
  };
  const rates: Samples = { [INTERCEPTOR]: [], [FLOOR]: [] };
  for (let round = 0; round < samples; round++) {
    for (const [name, { pid: of, open, ca }] of Object.entries(contenders)) {
      signal.throwIfAborted();
      progress(`round ${round + 1} of ${samples}: ${name}`);
      await load(WARM_UP_REQUESTS, open, ca);
      const before = await cpuSeconds(of);
      await load(REQUESTS, open, ca);
      rates[name]?.push(REQUESTS / ((await cpuSeconds(of)) - before));
    }
  }
  const rate = summarize(rates[INTERCEPTOR] ?? []).p50;
  const result: SuiteResult = {
    title: 'Secrets in intercepted HTTPS',
    goal: `Requests a second of processor time of the process, ${CONNECTIONS} connections, responses of 1 KiB. At least ${GOAL}.`,
    unit: 'requests/s a core',
    rows: summaryRows(rates),
    verdicts: [
      { what: 'p50 of the interceptor', value: rate, goal: `at least ${GOAL}`, met: rate >= GOAL },
      {
        what: 'its share of the other proxy',
        value: rate / summarize(rates[FLOOR] ?? []).p50,
        goal: 'none',
        met: true,
      },
    ],
    samples: rates,
  };
  return [result];
};

function secret() {
  const placeholders = [createHash('sha256').update(TOKEN).digest('hex')];
  return { name: 'KEY', value: 'sk_live_0123456789abcdef', allowed_domains: [HOST], placeholders };
}

async function start(
  stack: AsyncDisposableStack,
  name: string,
  ...args: string[]
): Promise<{ pid: number; port: number }> {
  const path = fileURLToPath(new URL(`../intercept/${name}`, import.meta.url));
  const child: ChildProcess = spawn(process.execPath, [path, ...args], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  stack.defer(() => void child.kill('SIGKILL'));
  const [data] = child.stdout === null ? [] : ((await once(child.stdout, 'data')) as [Buffer]);
  return { pid: child.pid ?? 0, port: Number(String(data)) };
}

/** Makes that many requests on connections of its own; resolves when all are answered. */
async function load(requests: number, open: () => Duplex, ca: string): Promise<void> {
  const agent = new Agent({ keepAlive: true, maxSockets: CONNECTIONS });
  agent.createConnection = () => tlsConnect({ socket: open(), servername: HOST, ca });
  const one = async (): Promise<void> => {
    const sent = request({ agent, host: HOST, headers: { host: HOST, authorization: `Bearer ${TOKEN}` } });
    sent.end();
    const [answer] = (await once(sent, 'response')) as [IncomingMessage];
    answer.resume();
    await once(answer, 'end');
    if (answer.statusCode !== 200) throw new Error(`the answer was ${answer.statusCode}`);
  };
  let left = requests;
  const worker = async (): Promise<void> => {
    while (left-- > 0) await one();
  };
  await Promise.all(Array.from({ length: Math.min(CONNECTIONS, requests) }, worker));
  agent.destroy();
}

async function cpuSeconds(pid: number): Promise<number> {
  const fields = (await readFile(`/proc/${pid}/stat`, 'utf8')).split(') ')[1]?.split(' ') ?? [];
  return (Number(fields[11]) + Number(fields[12])) / TICKS;
}
