import type { Socket } from 'node:net';
import type { GrantLease } from '../control/grants.ts';
import { openPortStream } from '../ports/port-stream.ts';
import { GuestProcess, type ProcessEnd } from './guest-process.ts';
import { SSH_PROGRAM } from './guest-program.ts';

/** Where a forwarded connection goes, as seen from inside the sandbox. */
export type Destination = { host: string; port: number } | { socketPath: string };

export interface ConnectionEvents {
  onData: (data: Buffer) => void;
  /** The other end sends nothing more. */
  onDataEnd: () => void;
  /** More may be written. */
  onDrain: () => void;
  onClose: () => void;
}

/** An open connection to something inside a sandbox, or that the sandbox can reach. */
export interface GuestConnection {
  /** @returns false when no more should be written until `onDrain` */
  write(data: Buffer): boolean;
  /** Ends this direction only. */
  end(): void;
  pause(): void;
  resume(): void;
  destroy(): void;
}

interface OpenOptions {
  startMs: number;
  signal: AbortSignal;
}

/**
 * Connects from inside the sandbox: to its own ports over the runner's port stream, and to everything else with a process in
 * the sandbox, so that its network and egress policy apply.
 * @throws Error when nothing listens there
 */
export async function connectInGuest(
  lease: GrantLease,
  to: Destination,
  events: ConnectionEvents,
  options: OpenOptions,
): Promise<GuestConnection> {
  if ('port' in to && isLoopback(to.host)) return ofSocket(await openPortStream(lease, to.port), events);
  return await dial(lease, to, events, options);
}

function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || /^127(\.\d{1,3}){3}$/.test(host);
}

function ofSocket(socket: Socket, events: ConnectionEvents): GuestConnection {
  socket.on('data', events.onData);
  socket.on('end', events.onDataEnd);
  socket.on('drain', events.onDrain);
  socket.on('close', events.onClose);
  return {
    write: (data) => socket.write(data),
    end: () => void socket.end(),
    pause: () => void socket.pause(),
    resume: () => void socket.resume(),
    destroy: () => void socket.destroy(),
  };
}

/** A process in the sandbox that connects, writes one byte, and then copies both ways. */
async function dial(
  lease: GrantLease,
  to: Destination,
  events: ConnectionEvents,
  options: OpenOptions,
): Promise<GuestConnection> {
  const connected = Promise.withResolvers<void>();
  let isOpen = false;
  let complaint = '';
  const refused = (end: ProcessEnd | Error): Error =>
    end instanceof Error ? end : new Error(complaint.trim() || end.error || 'the connection failed');
  const dialer = await GuestProcess.start(
    lease,
    {
      type: 'start',
      argv: [
        SSH_PROGRAM,
        'dial',
        ...('port' in to ? ['tcp', to.host, String(to.port)] : ['unix', to.socketPath]),
      ],
      stdin: true,
      output_end: true,
    },
    {
      onOutput: (from, data) => {
        if (from === 'stderr') complaint = (complaint + data.toString('utf8')).slice(-1_000);
        else if (isOpen) events.onData(data);
        else {
          isOpen = true;
          connected.resolve();
          if (data.length > 1) events.onData(data.subarray(1));
        }
      },
      onOutputEnd: () => isOpen && events.onDataEnd(),
      onDrain: events.onDrain,
      onEnd: (end) => {
        connected.reject(refused(end));
        if (isOpen) events.onClose();
      },
    },
    options,
  );
  const abort = (): void => connected.reject(new Error('the client disconnected'));
  const timer = setTimeout(() => connected.reject(new Error('no connection in time')), options.startMs);
  options.signal.addEventListener('abort', abort, { once: true });
  try {
    await connected.promise;
  } catch (error) {
    dialer.cancel();
    throw error;
  } finally {
    clearTimeout(timer);
    options.signal.removeEventListener('abort', abort);
  }
  return {
    write: (data) => dialer.write(data),
    end: () => dialer.endInput(),
    pause: () => dialer.pauseOutput(),
    resume: () => dialer.resumeOutput(),
    destroy: () => dialer.cancel(),
  };
}
