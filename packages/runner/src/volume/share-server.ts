/** Serves a folder of the host to one guest: a virtiofsd in a jail of its own (`hostd share`). */
import { spawn } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import { open, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ARCHITECTURE } from '../host/architecture.ts';
import { HOSTD } from '../host/hostd.ts';
import { setOomScore } from '../vmm/jail.ts';
import { identifyProcess, killProcess, type ProcessIdentity } from '../vmm/process-identity.ts';

/** A folder of the host that a guest can mount. */
export interface Share {
  /** The tag by which the guest mounts it. */
  tag: string;
  /** Absolute path of a folder on a file system of its own, whose owners are users of the guest. */
  data: string;
  /** Folder below it, which is created if it does not exist. No part of it may be a link. */
  subpath?: string | undefined;
}

export interface ShareServerOptions {
  share: Share;
  /** Folder with the unpacked virtiofsd (setup/virtiofsd.mjs). */
  program: string;
  /** Path of the socket that it creates; the guest's VMM connects to it. */
  socket: string;
  /** First of the 65,536 users and groups of the host that are those of the server. */
  firstId: number;
  /** `cgroup.procs` files to join. */
  cgroupProcs: string[];
  /** Path of a file for its messages. */
  output: string;
}

/** Where `hostd share` mounts program and folder. */
const PROGRAM = '/vmm';
const DATA = '/data';
const SOCKET_FD = 3;
/** Ids of the host that a user namespace of a server has. */
const IDS = 65_536;
/** Above the users of network slots (address-plan.ts). Ranges of 2^15 servers fit, without the last: it has the id -1. */
const FIRST_IDS = 0x8000_0000;
const RANGES = 2 ** 15 - 1;
/** A guest's kernel has a descriptor for each file that it knows: those in use, without a cache. */
const OPEN_FILES_MAX = 1_000_000;
const THREADS_MAX = 64;
const START_DEADLINE_MS = 20_000;
const KILL_DEADLINE_MS = 5_000;
const OUTPUT_TAIL = 500;

/** First id of the server of a sandbox's share. @param uid of the sandbox's slot, which no other sandbox of the service has */
export function shareIds(uid: number, index: number, sharesMax: number): number {
  return FIRST_IDS + ((uid * sharesMax + index) % RANGES) * IDS;
}

/**
 * Starts a server, which outlives this process, and waits until it listens. It ends with the VMM that connects to it.
 * @throws with its own message when it cannot start; nothing of it is left then
 */
export async function startShareServer(options: ShareServerOptions): Promise<ProcessIdentity> {
  const { output } = options;
  const file = await open(output, 'w', 0o600);
  let child: ChildProcess;
  try {
    child = spawn(HOSTD, shareArguments(options), {
      detached: true,
      cwd: '/',
      stdio: ['ignore', 'pipe', file.fd],
      env: { LC_ALL: 'C' },
    });
  } finally {
    await file.close();
  }
  child.unref();
  const ready = Promise.withResolvers<void>();
  const failed = (): void => ready.reject(new Error('it has ended'));
  child.once('exit', failed);
  child.once('error', failed);
  child.stdout?.once('data', () => ready.resolve());
  const late = setTimeout(() => ready.reject(new Error('it did not start in time')), START_DEADLINE_MS);
  try {
    if (child.pid === undefined) throw new Error('hostd is missing');
    const identity = identifyProcess(child.pid);
    setOomScore(child.pid, 'guaranteed');
    await ready.promise.catch(async (error: unknown) => {
      await killProcess(identity, KILL_DEADLINE_MS);
      throw error;
    });
    return identity;
  } catch (error) {
    const said = (await readFile(output, 'utf8').catch(() => '')).trim().slice(-OUTPUT_TAIL);
    throw new Error(`the volume cannot be served: ${said || (error as Error).message}`, { cause: error });
  } finally {
    clearTimeout(late);
    child.stdout?.destroy();
  }
}

function shareArguments({ share, program, socket, firstId, cgroupProcs }: ShareServerOptions): string[] {
  const values: [string, string | number][] = [
    ['program', program],
    ['data', share.data],
    ['subpath', share.subpath ?? ''],
    ['ids', firstId],
    ['nofile', OPEN_FILES_MAX],
    ['nproc', THREADS_MAX],
    ['listen', socket],
  ];
  for (const procs of cgroupProcs) values.push(['cgroup', procs]);
  return ['share', ...values.flatMap(([name, value]) => [`--${name}`, String(value)]), '--', ...command()];
}

/**
 * The options of virtiofsd. Without a cache each guest sees at once what another one has written, and the server has
 * descriptors only of files that are in use. `allow-mmap` lets programs map files shared: between processes of one guest such
 * a mapping is coherent, and SQLite needs it.
 */
function command(): string[] {
  const lib = join(PROGRAM, 'lib');
  const loader = [join(lib, ARCHITECTURE.loader), '--inhibit-cache', '--library-path', lib];
  const place = [
    '--fd',
    String(SOCKET_FD),
    '--shared-dir',
    DATA,
    '--sandbox',
    'none',
    '--rlimit-nofile',
    '0',
  ];
  const mode = ['--cache', 'never', '--allow-mmap', '--xattr', '--posix-acl', '--inode-file-handles=never'];
  const program = ['--argv0', 'virtiofsd', join(PROGRAM, 'bin/virtiofsd')];
  return [...loader, ...program, ...place, ...mode, '--log-level', 'warn'];
}
