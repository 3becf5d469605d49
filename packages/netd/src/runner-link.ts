import type { Socket } from 'node:net';
import {
  NETD_DRAIN_MS,
  NETD_LINE_MAX_BYTES,
  NETD_PROTOCOL,
  type NetdPin,
  type NetdToRunner,
  RunnerToNetd,
} from '@releap/contract/netd';
import { RunnerConnection } from './runner-connection.ts';
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

/** netd as its runner sees it. Sandboxes are served while there is no runner. */
export class RunnerLink {
  readonly #stop: () => void;
  readonly #runner: RunnerConnection<typeof RunnerToNetd, NetdToRunner>;
  readonly #service: Service;
  #egressPort = 0;
  readonly #pins = new Map<number, WaitingPin>();
  #nextPin = 1;
  #isDraining = false;

  private constructor(version: string, stop: () => void) {
    this.#stop = stop;
    this.#runner = new RunnerConnection<typeof RunnerToNetd, NetdToRunner>({
      received: RunnerToNetd,
      receivedMaxBytes: NETD_LINE_MAX_BYTES,
      hello: () => ({
        type: 'hello',
        protocol: NETD_PROTOCOL,
        version,
        egress_port: this.#egressPort,
      }),
      onMessage: (message, known) => this.#onMessage(message, known),
    });
    this.#service = new Service({
      log: this.#runner.log,
      pin: (vmId, pins) => this.#pin(vmId, pins),
      onDnsPort: (port) => this.#runner.send({ type: 'dns', port }),
    });
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
    return this.#service.isEmpty ? this.#runner.aloneMs : 0;
  }

  /** Connections that are left, once another netd has its place. */
  get draining(): number | undefined {
    return this.#isDraining ? this.#service.connections : undefined;
  }

  accept(socket: Socket): void {
    this.#runner.accept(socket);
  }

  #onMessage(message: RunnerToNetd, known: Set<string>): void {
    const runner = this.#runner;
    const done = (seq: number, work: Promise<unknown> = Promise.resolve()): void =>
      runner.answer(work.then(() => ({ type: 'done', seq })));
    switch (message.type) {
      case 'hello': {
        this.#service.configure(message);
        const port = this.#service.dnsPort;
        if (port !== undefined) runner.send({ type: 'dns', port });
        return;
      }
      case 'put': {
        const { seq, sandbox } = message;
        known.add(sandbox.vm_id);
        const published = this.#service.put(sandbox);
        return runner.answer(
          published.then((forwards) => ({
            type: 'done',
            seq,
            ...(forwards === undefined ? {} : { forwards }),
          })),
        );
      }
      case 'remove':
        known.delete(message.vm_id);
        return done(message.seq, this.#service.remove(message.vm_id));
      case 'synced':
        // Questions that were asked while there was no runner.
        for (const { message: pin } of this.#pins.values()) runner.send(pin);
        return done(message.seq, this.#service.keepOnly(known));
      case 'forget_pins':
        this.#service.forgetPins();
        return done(message.seq);
      case 'denied':
        return runner.send({
          type: 'done',
          seq: message.seq,
          denied: this.#service.denied(message.vm_id),
        });
      case 'drain':
        this.#isDraining = true;
        setTimeout(this.#stop, NETD_DRAIN_MS);
        return done(message.seq, this.#service.drain());
      case 'ping':
        return done(message.seq);
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
      this.#runner.send(message);
    });
  }
}
