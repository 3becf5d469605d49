/** Starts the real agent as an ordinary process for tests; it ends with the `await using` block. */
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { access, mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { GuestClient } from '@releap/runner/data';
import { pino } from 'pino';
import { childrenOf } from './processes.ts';

const repository = path.resolve(import.meta.dirname, '../../..');
const binary = path.join(repository, 'build/guest/agent');
const toolboxDaemon = path.join(repository, 'build/guest/toolboxd');

const START_DEADLINE_MS = 60_000;
/** Flags of a socket that accepts connections, in /proc/net/unix. */
const LISTENING = '00010000';

export const log = pino({ level: process.env['RELEAP_TEST_LOG'] ?? 'silent' });

/** Built once when missing; set-up builds it elsewhere. */
async function ensureAgent(): Promise<string> {
  await ensureBinary(binary, 'guest/cmd/agent');
  await ensureBinary(toolboxDaemon, 'guest/toolbox');
  return binary;
}

async function ensureBinary(output: string, folder: string): Promise<void> {
  try {
    await access(output);
  } catch {
    const script = path.join(repository, 'setup/build-go.sh');
    await promisify(execFile)(script, [folder, output], { timeout: 300_000 });
  }
}

export interface TestAgent extends AsyncDisposable {
  socket: string;
  folder: string;
  pid: number;
  child: ChildProcess;
  connect(): Promise<GuestClient>;
}

export async function startAgent(): Promise<TestAgent> {
  const agent = await ensureAgent();
  const folder = await mkdtemp(path.join(tmpdir(), 'releap-agent-'));
  const socket = path.join(folder, 'agent.sock');
  const child = spawn(agent, ['-serve', `unix:${socket}`], {
    stdio: ['ignore', 'ignore', 'inherit'],
    env: { ...process.env, RELEAP_TOOLBOXD: toolboxDaemon, TMPDIR: folder },
  });
  const clients: GuestClient[] = [];
  for (const end = Date.now() + START_DEADLINE_MS; !(await listens(socket)); await sleep(10)) {
    if (Date.now() > end || child.exitCode !== null) throw new Error(`no process listens at ${socket}`);
  }
  return {
    socket,
    folder,
    pid: child.pid ?? 0,
    child,
    connect: async () => {
      const client = await GuestClient.connect(socket, { log });
      clients.push(client);
      return client;
    },
    [Symbol.asyncDispose]: async () => {
      for (const client of clients) client.close();
      if (child.exitCode === null && child.signalCode === null) {
        // What it has started would outlive it.
        const started = await childrenOf(child.pid ?? 0);
        const exited = once(child, 'exit');
        child.kill('SIGKILL');
        await exited;
        for (const pid of started) killGroup(pid);
      }
      await rm(folder, { recursive: true, force: true });
    },
  };
}

/** A socket has its name before it listens; connecting to it in between is refused. */
async function listens(socket: string): Promise<boolean> {
  const sockets = await readFile('/proc/net/unix', 'utf8');
  return sockets.split('\n').some((line) => line.endsWith(` ${socket}`) && line.split(' ')[3] === LISTENING);
}

/** The agent starts each command in a process group of its own. */
function killGroup(pid: number): void {
  try {
    process.kill(-pid, 'SIGKILL');
  } catch {
    // It has ended meanwhile.
  }
}
