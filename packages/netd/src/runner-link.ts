import type { Socket } from 'node:net';
import {
  LineReader,
  NETD_LINE_MAX_BYTES,
  NETD_PROTOCOL,
  type NetdPin,
  type NetdToRunner,
  RunnerToNetd,
} from '@releap/contract/netd';
import type { Log } from './log.ts';
import { runnerLog } from './runner-log.ts';
import { Service } from './service.ts';

/** A guest's resolver asks again after five seconds; a runner that restarts may be back by then. */
const PIN_DEADLINE_MS = 4_500;
/** Questions that wait for the runner to open addresses; beyond it they are refused: answers are cheap to make up. */
const PINS_WAITING_MAX = 2048;
const PINS_WAITING_PER_SANDBOX = 32;

interface WaitingPin {
  message: NetdToRunner & { type: 'pin' };
  settle: (granted: boolean) => void;
}

/** The runner as netd sees it: there is one at a time, and none while it restarts. Sandboxes are served meanwhile. */
export class RunnerLink {
  readonly #version: string;
  readonly #stop: () => void;
  readonly #service: Service = new Service({
    log: this.#log(),
    pin: (vmId, pins) => this.#pin(vmId, pins),
    onDnsPort: (port) => this.#send({ type: 'dns', port }),
  });
  #egressPort = 0;
  readonly #pins = new Map<number, WaitingPin>();
  #socket: Socket | undefined;
  #nextPin = 1;
  /** Since when there is no runner, by `performance.now()`. */
  #aloneSince = performance.now();

  private constructor(version: string, stop: () => void) {
    this.#version = version;
    this.#stop = stop;
  }

  /**
   * @param egressFd descriptor of the socket that redirected connections arrive at
   * @param stop the runner wants us to end
   */
  static async open(version: string, egressFd: number, stop: () => void): Promise<RunnerLink> {
    const link = new RunnerLink(version, stop);
    link.#egressPort = await link.#service.openEgress(egressFd);
    return link;
  }

  /** How long there has been neither a runner nor anything to serve, in milliseconds. */
  get idleMs(): number {
    return this.#socket === undefined && this.#service.isEmpty ? performance.now() - this.#aloneSince : 0;
  }

  accept(socket: Socket): void {
    this.#socket?.destroy();
    this.#socket = socket;
    const reader = new LineReader(RunnerToNetd, NETD_LINE_MAX_BYTES);
    /** What this runner has put; of use until it says that that was all. */
    const known = new Set<string>();
    socket.on('error', () => socket.destroy());
    socket.on('close', () => {
      if (this.#socket !== socket) return;
      this.#socket = undefined;
      this.#aloneSince = performance.now();
    });
    socket.on('data', (chunk) => {
      try {
        for (const message of reader.push(chunk)) this.#onMessage(message, socket, known);
      } catch {
        socket.destroy();
      }
    });
    this.#send({
      type: 'hello',
      protocol: NETD_PROTOCOL,
      version: this.#version,
      egress_port: this.#egressPort,
    });
  }

  #onMessage(message: RunnerToNetd, socket: Socket, known: Set<string>): void {
    if (this.#socket !== socket) return;
    const done = (seq: number, work: Promise<unknown>): void => {
      work.then(
        () => this.#answer(socket, { type: 'done', seq }),
        () => socket.destroy(),
      );
    };
    switch (message.type) {
      case 'hello': {
        this.#service.configure(message);
        const port = this.#service.dnsPort;
        if (port !== undefined) this.#send({ type: 'dns', port });
        return;
      }
      case 'put': {
        const { seq, sandbox } = message;
        known.add(sandbox.vm_id);
        this.#service.put(sandbox).then(
          (forwards) =>
            this.#answer(socket, { type: 'done', seq, ...(forwards === undefined ? {} : { forwards }) }),
          () => socket.destroy(),
        );
        return;
      }
      case 'remove':
        known.delete(message.vm_id);
        return done(message.seq, this.#service.remove(message.vm_id));
      case 'synced':
        // Questions that were asked while there was no runner.
        for (const { message: pin } of this.#pins.values()) this.#send(pin);
        return done(message.seq, this.#service.keepOnly(known));
      case 'forget_pins':
        this.#service.forgetPins();
        return done(message.seq, Promise.resolve());
      case 'denied':
        return this.#answer(socket, {
          type: 'done',
          seq: message.seq,
          denied: this.#service.denied(message.vm_id),
        });
      case 'ping':
        return done(message.seq, Promise.resolve());
      case 'pinned':
        return this.#pins.get(message.id)?.settle(message.granted);
      case 'stop':
        return this.#stop();
    }
  }

  #pin(vmId: string, pins: NetdPin[]): Promise<void> {
    const own = [...this.#pins.values()].filter(({ message }) => message.vm_id === vmId).length;
    if (own >= PINS_WAITING_PER_SANDBOX || this.#pins.size >= PINS_WAITING_MAX)
      return Promise.reject(new Error('too many addresses are waiting to be pinned'));
    const id = this.#nextPin++;
    const message = { type: 'pin' as const, id, vm_id: vmId, pins };
    return new Promise((resolve, reject) => {
      const settle = (granted: boolean): void => {
        clearTimeout(timer);
        this.#pins.delete(id);
        if (granted) resolve();
        else reject(new Error('the addresses could not be pinned'));
      };
      const timer = setTimeout(() => settle(false), PIN_DEADLINE_MS);
      this.#pins.set(id, { message, settle });
      this.#send(message);
    });
  }

  #answer(socket: Socket, message: NetdToRunner): void {
    if (this.#socket === socket) this.#send(message);
  }

  #send(message: NetdToRunner): void {
    this.#socket?.write(`${JSON.stringify(message)}\n`);
  }

  #log(): Log {
    return runnerLog(
      () => this.#socket?.writableLength ?? 0,
      (message) => this.#send(message),
    );
  }
}
