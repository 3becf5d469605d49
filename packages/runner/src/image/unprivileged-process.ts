/** Starts the processes that handle what strangers send: without privileges, and without a network unless they fetch. */
import type { Writable } from 'node:stream';
import { ImageError, show } from './image-error.ts';
import { runTool } from './image-tool.ts';
import type { RunResult } from '../process/index.ts';

export interface UnprivilegedOptions<M> {
  /** First line of its standard input, as JSON. */
  job: object;
  /** Its working directory, the only place that it can write to; paths in `job` are relative to it. */
  cwd: string;
  network: boolean;
  heapMib: number;
  /** Largest file that it may write, bytes. */
  fileMax: number;
  deadlineMs: number;
  signal?: AbortSignal | undefined;
  onMessage: (message: M) => void;
  /** Gets a function that sends another line. */
  onStart?: (send: (message: object) => void) => void;
}

/** To load its code as root, and to become another user. */
const CAPABILITIES = '-all,+setuid,+setgid,+dac_read_search';
const FILES_MAX = 1024;

/** Runs a module that calls `leaveRoot` before it reads its job. @throws ImageError */
export async function runUnprivileged<M>(
  module: string,
  options: UnprivilegedOptions<M>,
): Promise<RunResult> {
  const command = [
    'prlimit',
    `--nofile=${FILES_MAX}`,
    '--core=0',
    '--',
    process.execPath,
    `--max-old-space-size=${options.heapMib}`,
    module,
  ];
  const confine = [
    '--mount',
    '--ipc',
    ...(options.network ? [] : ['--net']),
    '--',
    'setpriv',
    '--no-new-privs',
    `--bounding-set=${CAPABILITIES}`,
    '--',
  ];
  const write = (stdin: Writable, message: object): boolean => stdin.write(`${JSON.stringify(message)}\n`);
  return await runTool('unshare', [...confine, ...command], {
    deadlineMs: options.deadlineMs,
    signal: options.signal,
    cwd: options.cwd,
    env: environment(),
    fileMax: options.fileMax,
    // Its standard input stays open: the end of that is how the process learns that we have ended.
    feed: (stdin) => {
      write(stdin, options.job);
      options.onStart?.((message) => write(stdin, message));
    },
    onLine: (line) => options.onMessage(parseMessage<M>(line)),
  });
}

function parseMessage<M>(line: string): M {
  try {
    return JSON.parse(line) as M;
  } catch {
    throw new ImageError('failed', `an image process printed something else: ${show(line, 200)}`);
  }
}

/** Nothing of the runner's but the way out, which those without a network cannot take. */
function environment(): NodeJS.ProcessEnv {
  const env: NodeJS.ProcessEnv = { NODE_NO_WARNINGS: '1', LC_ALL: 'C.UTF-8' };
  for (const name of KEPT) {
    const value = process.env[name];
    if (value !== undefined) env[name] = value;
  }
  return env;
}
const KEPT = [
  'PATH',
  'SSL_CERT_FILE',
  'HTTP_PROXY',
  'HTTPS_PROXY',
  'NO_PROXY',
  'http_proxy',
  'https_proxy',
  'no_proxy',
];
