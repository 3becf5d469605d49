/** Bytes through the SSH gateway, next to Debian's sshd in the same guest. */
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createReadStream } from 'node:fs';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { SshHostKeys } from '@releap/contract';
import { type SuiteResult, summaryRows } from '../report.ts';
import { MeasuredService } from '../service.ts';
import { interleave, summarize, timed } from '../statistics.ts';
import { besideTransfers, type Transfer } from '../ssh/beside.ts';
import { startSshd } from '../ssh/sshd.ts';
import { type Suite, suiteFolder } from '../suite.ts';

const MIB = 8;
const WARM_UP = 1;
/** Share of sshd's throughput. */
const GOAL = 0.5;
const GATEWAY = 'SSH gateway';
const SSHD = "Debian's sshd in the guest";

const WAYS = [
  'a command that writes',
  'a command that reads',
  'scp to the sandbox',
  'scp from the sandbox',
] as const;

export const ssh: Suite = async ({ samples, progress, signal }) => {
  await using folder = await suiteFolder();
  progress("starting a service, and Debian's sshd in a sandbox of it");
  await using service = await MeasuredService.start({ warmPool: 0 });
  const id = await service.createAndRun({ mem_mib: 512, scratch_size_mib: 256 });
  const sshdFolder = join(folder.path, 'sshd');
  await mkdir(sshdFolder);
  const key = await startSshd(service, id, sshdFolder);
  const { vm_ip: address } = await service.call<{ vm_ip: string }>('GET', `/vms/${id}`);
  const gateway = (await (
    await fetch(`${await service.service.toolboxUrl()}/ssh/host-keys`)
  ).json()) as SshHostKeys;
  const file = join(folder.path, 'file');
  await writeFile(file, randomBytes(MIB * 2 ** 20));

  const clients: Record<string, Client> = {
    [GATEWAY]: new Client(join(folder.path, 'g'), [
      `User="${id}#${service.service.bootstrap.api_key}"`,
      'HostName=127.0.0.1',
      `Port=${gateway.port}`,
    ]),
    [SSHD]: new Client(join(folder.path, 's'), ['User=root', `HostName=${address}`, `IdentityFile=${key}`]),
  };
  const contenders: Record<string, () => Promise<number>> = {};
  for (const [name, client] of Object.entries(clients)) {
    const count = MIB * 16;
    const ways: Record<(typeof WAYS)[number], () => Promise<void>> = {
      'a command that writes': () => client.ssh(`dd if=/dev/zero bs=64k count=${count} 2> /dev/null`),
      'a command that reads': () => client.ssh('cat > /dev/null', file),
      'scp to the sandbox': () => client.run('scp', [file, 'host:/dev/shm/file']),
      'scp from the sandbox': () => client.run('scp', ['host:/dev/shm/file', join(folder.path, 'back')]),
    };
    for (const way of WAYS) contenders[`${way}, ${name}`] = () => timed(ways[way]);
  }
  try {
    // Connections are made before: what is measured is the transfer.
    for (const client of Object.values(clients)) await client.open();
    const taken = await interleave(contenders, {
      rounds: samples,
      warmUp: Math.min(WARM_UP, samples - 1),
      signal,
      onRound: (round) => progress(round < 0 ? 'warming up' : `round ${round + 1} of ${samples}`),
    });
    const p50 = (way: string, name: string): number => summarize(taken[`${way}, ${name}`] ?? []).p50;
    const result: SuiteResult = {
      title: 'SSH',
      goal:
        `${MIB} MiB over a connection that is open, next to Debian's sshd in the same guest, whose port is reached without ` +
        `Releap. At least ${GOAL} of its throughput.`,
      unit: 'ms',
      rows: summaryRows(taken),
      verdicts: WAYS.map((way) => {
        const value = p50(way, SSHD) / p50(way, GATEWAY);
        return {
          what: `throughput of ${way}, relative to sshd,`,
          value,
          goal: `at least ${GOAL}`,
          met: value >= GOAL,
        };
      }),
      notes: [
        'sshd encrypts inside the guest, the gateway on the host: an emulated guest makes sshd slower than it is with KVM.',
      ],
      samples: taken,
    };
    const transfer = (client: Client) => () => client.endless('cat /dev/zero');
    const [own, other] = Object.values(clients);
    if (own === undefined || other === undefined) throw new Error('there are two servers');
    const beside = await besideTransfers({
      url: new URL(await service.service.toolboxUrl()).origin,
      transfers: {
        'a transfer through the SSH gateway': transfer(own),
        'a transfer through sshd': transfer(other),
      },
      rounds: samples,
      progress,
      signal,
    });
    return [result, beside];
  } finally {
    for (const client of Object.values(clients)) await client.close();
    await service.remove(id);
    await rm(file, { force: true });
  }
};

/** OpenSSH's client on one server; all its commands share one connection. */
class Client {
  readonly #options: string[];

  constructor(control: string, options: readonly string[]) {
    this.#options = [
      '-F',
      'none',
      ...[
        `ControlPath=${control}`,
        'BatchMode=yes',
        'StrictHostKeyChecking=no',
        'UserKnownHostsFile=/dev/null',
        'LogLevel=ERROR',
        ...options,
      ].flatMap((option) => ['-o', option]),
    ];
  }

  async open(): Promise<void> {
    await this.run('ssh', ['-o', 'ControlMaster=yes', '-o', 'ControlPersist=600', 'host', 'true']);
  }

  async close(): Promise<void> {
    await this.run('ssh', ['-O', 'exit', 'host']).catch(() => undefined);
  }

  /** @param input a file for its standard input */
  async ssh(command: string, input?: string): Promise<void> {
    await this.run('ssh', ['host', command], input);
  }

  /** Runs a command without an end, once it writes. */
  async endless(command: string): Promise<Transfer> {
    const child = spawn('ssh', [...this.#options, 'host', command], { stdio: ['ignore', 'pipe', 'ignore'] });
    const ended = once(child, 'exit');
    let bytes = 0;
    child.stdout.on('data', (chunk: Buffer) => (bytes += chunk.length));
    await once(child.stdout, 'data');
    return {
      get bytes() {
        return bytes;
      },
      async [Symbol.asyncDispose]() {
        child.kill();
        await ended;
      },
    };
  }

  async run(program: string, words: readonly string[], input?: string): Promise<void> {
    const child = spawn(program, [...this.#options, ...words], { stdio: ['pipe', 'ignore', 'pipe'] });
    let complaint = '';
    child.stderr.on('data', (chunk: Buffer) => (complaint += chunk.toString('utf8')));
    child.stdin.on('error', () => undefined);
    if (input === undefined) child.stdin.end();
    else createReadStream(input).pipe(child.stdin);
    const { promise, resolve, reject } = Promise.withResolvers<number | null>();
    child.once('error', reject);
    // Not `close`: the process of a shared connection keeps standard error.
    child.once('exit', resolve);
    const code = await promise;
    if (code !== 0) throw new Error(`${program} ended with ${code}: ${complaint}`);
  }
}
