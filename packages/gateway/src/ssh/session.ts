import type { ProcessStreamStart, TerminalSize } from '@releap/contract';
import type { ServerChannel, Session } from 'ssh2';
import type { GrantLease } from '../control/grants.ts';
import { ChannelWriter, type Congestion } from './channel-writer.ts';
import { GuestProcess, type ProcessEnd } from './guest-process.ts';
import { SSH_PROGRAM } from './guest-program.ts';
import type { SshLimits } from './ssh-limits.ts';

/** Exit status of a session that fails because of the service, as that of OpenSSH's client is. */
const FAILED = 255;
const OUTPUT_MAX_BYTES = 256 * 1024;
const VARIABLE = /^[A-Za-z_][A-Za-z0-9_]*$/;
/** A login shell of the image's user; `/bin/sh` in a sandbox whose system disk is older than the program. */
const LOGIN = `[ -x ${SSH_PROGRAM} ] && exec ${SSH_PROGRAM} login-shell; exec /bin/sh -l`;
/** The signals that RFC 4254 names; others are reported as an exit status. */
const SIGNALS = new Set('ABRT ALRM FPE HUP ILL INT KILL PIPE QUIT SEGV TERM USR1 USR2'.split(' '));

export interface SessionContext {
  /** A grant for the sandbox now. @throws ApiError */
  lease: () => Promise<GrantLease>;
  limits: SshLimits;
  congestion: Congestion;
  /** Aborted with the connection. */
  closed: AbortSignal;
}

type Kind = 'shell' | 'exec' | 'sftp';

/** One session channel: a shell, a command or sftp. */
export class SshSession {
  readonly #context: SessionContext;
  readonly #env: Record<string, string> = {};
  #envCount = 0;
  #envBytes = 0;
  #pty: TerminalSize | undefined;
  #channel: ServerChannel | undefined;
  #discards = false;
  #writer: ChannelWriter | undefined;
  #process: GuestProcess | undefined;
  /** What the client requests before the process runs. */
  readonly #early: ((process: GuestProcess) => void)[] = [];
  readonly #ended = new AbortController();

  constructor(session: Session, context: SessionContext, onEnd: () => void) {
    this.#context = context;
    session.on('env', (accept, reject, { key, val }) => {
      if (this.#setVariable(key, val)) accept?.();
      else reject?.();
    });
    session.on('pty', (accept, _reject, info) => {
      this.#pty = sizeOf(info);
      const { term } = info as { term?: string };
      if (term !== undefined && term !== '' && !term.includes('\0')) this.#env['TERM'] = term.slice(0, 128);
      accept?.();
    });
    session.on('window-change', (accept, _reject, info) => {
      const size = sizeOf(info);
      this.#pty = size;
      this.#whenStarted((process) => process.resize(size));
      accept?.();
    });
    session.on('signal', (accept, reject, { name }) => {
      if (!/^[A-Z0-9]{1,12}$/.test(name)) return reject?.();
      this.#whenStarted((process) => process.signal(`SIG${name}`));
      accept?.();
    });
    // Accepted at once: ssh2 drops requests and data that arrive before.
    session.on('shell', (accept) => this.#start('shell', accept(), { command: LOGIN }));
    session.on('exec', (accept, _reject, { command }) => this.#start('exec', accept(), { command }));
    session.on('subsystem', (accept, reject, { name }) => {
      if (name === 'sftp') this.#start('sftp', accept(), { argv: [SSH_PROGRAM, 'sftp-server'] });
      else reject?.();
    });
    const end = (): void => {
      if (this.#ended.signal.aborted) return;
      this.#ended.abort();
      context.closed.removeEventListener('abort', end);
      this.#writer?.close();
      this.#process?.cancel();
      onEnd();
    };
    session.on('close', end);
    context.closed.addEventListener('abort', end);
  }

  /** The client reads no more output: the process gets what a write to a closed pipe gives it. */
  discardOutput(): void {
    if (this.#discards) return;
    this.#discards = true;
    this.#whenStarted((process) => {
      process.signal('SIGPIPE');
      process.resumeOutput();
    });
  }

  /** Bytes from the client that wait for the process. */
  get inbound(): number {
    return this.#channel?.readableLength ?? 0;
  }

  #setVariable(name: string, value: string): boolean {
    const { envCount, envBytes } = this.#context.limits;
    const bytes = this.#envBytes + Buffer.byteLength(name) + Buffer.byteLength(value);
    if (!VARIABLE.test(name) || value.includes('\0') || this.#envCount >= envCount || bytes > envBytes)
      return false;
    this.#envCount++;
    this.#envBytes = bytes;
    this.#env[name] = value;
    return true;
  }

  #whenStarted(action: (process: GuestProcess) => void): void {
    if (this.#process !== undefined) action(this.#process);
    else if (this.#early.length < 64) this.#early.push(action);
  }

  /** @param channel undefined when the client has closed it already, or asks twice */
  #start(
    kind: Kind,
    channel: ServerChannel | undefined,
    what: Pick<ProcessStreamStart, 'argv' | 'command'>,
  ): void {
    if (channel === undefined || this.#channel !== undefined) return;
    this.#channel = channel;
    const writer = new ChannelWriter(channel, this.#context.congestion, () => this.#process?.resumeOutput());
    this.#writer = writer;
    channel.on('error', () => undefined);
    this.#run(kind, channel, writer, what).catch(async (error: unknown) => {
      const newline = this.#pty === undefined ? '\n' : '\r\n';
      writer.write('stderr', Buffer.from(`releap: ${messageOf(error)}${newline}`));
      await this.#finish(channel, writer, { exitCode: FAILED });
    });
  }

  async #run(
    kind: Kind,
    channel: ServerChannel,
    writer: ChannelWriter,
    what: Pick<ProcessStreamStart, 'argv' | 'command'>,
  ): Promise<void> {
    const { limits, lease } = this.#context;
    const terminal = kind === 'sftp' ? undefined : this.#pty;
    using granted = await lease();
    const ended = Promise.withResolvers<ProcessEnd | Error>();
    const process = await GuestProcess.start(
      granted,
      {
        type: 'start',
        ...what,
        stdin: true,
        env: this.#env,
        ...(terminal === undefined ? {} : { pty: terminal }),
      },
      {
        onOutput: (to, data) => {
          if (this.#discards) return;
          writer.write(to, data);
          if (writer.waiting > OUTPUT_MAX_BYTES) process.pauseOutput();
        },
        onDrain: () => channel.resume(),
        onEnd: ended.resolve,
      },
      { startMs: limits.startMs, signal: this.#ended.signal },
    );
    this.#process = process;
    if (this.#ended.signal.aborted) return process.cancel();
    for (const action of this.#early) action(process);
    channel.on('data', (chunk: Buffer) => {
      if (!process.write(chunk)) channel.pause();
    });
    channel.on('end', () => process.endInput());
    const end = await ended.promise;
    if (end instanceof Error) throw end;
    if (end.error !== undefined) {
      const hint = kind === 'sftp' && end.exitCode === 127 ? SFTP_MISSING : undefined;
      if (hint !== undefined) writer.write('stderr', Buffer.from(hint));
    } else if (kind === 'exec' && end.exitCode === 127 && what.command?.startsWith('scp ') === true)
      writer.write('stderr', Buffer.from(SCP_MISSING));
    await this.#finish(channel, writer, end);
  }

  /** Reports the end after all output. */
  async #finish(channel: ServerChannel, writer: ChannelWriter, end: ProcessEnd): Promise<void> {
    await writer.flushed();
    if (this.#ended.signal.aborted) return;
    const signal = end.signal?.replace(/^SIG/, '');
    if (signal !== undefined && SIGNALS.has(signal)) channel.exit(signal, false, '');
    else channel.exit(end.exitCode);
    // Discards remaining input: ssh2 reports the channel's end only after all input was read.
    channel.resume();
    channel.end();
  }
}

const SFTP_MISSING =
  'releap: this sandbox was started by a version without sftp: stop it and start it again\n';
const SCP_MISSING =
  "releap: the sandbox's image has no scp; scp without -O needs none (OpenSSH 9 and later; scp -s in 8.7)\n";

/** What a client says is clamped to what a terminal can have. 0 means unknown. */
function sizeOf({ rows, cols }: { rows: number; cols: number }): TerminalSize {
  const clamp = (value: number, unknown: number): number =>
    value >= 1 ? Math.min(Math.floor(value), 4096) : unknown;
  return { rows: clamp(rows, 24), cols: clamp(cols, 80) };
}

const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));
