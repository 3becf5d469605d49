import { createSocket, type Socket } from 'node:dgram';
import { once } from 'node:events';
import type { PortTarget } from './port-target.ts';

/** Of one port. */
const MAX_PEERS = 512;
/** Of all ports of one sandbox: each peer is a socket of netd. */
const MAX_PEERS_PER_SANDBOX = 1024;
const PEER_IDLE_MS = 60_000;
/** Datagrams are dropped, as any router does, while this much waits to be sent. */
const MAX_QUEUED_BYTES = 1024 * 1024;

/** How many peers the ports of one sandbox have together. */
export class PeerBudget {
  #used = 0;

  /** @returns false when there is none left */
  take(): boolean {
    if (this.#used >= MAX_PEERS_PER_SANDBOX) return false;
    this.#used += 1;
    return true;
  }

  release(): void {
    this.#used -= 1;
  }
}

interface Peer {
  inner: Socket;
  timer: NodeJS.Timeout;
}

/**
 * Passes datagrams on to `target`. Every peer gets a socket of its own towards the guest, so that the guest can
 * tell peers apart by port and answers find their way back; a peer is forgotten after a minute of silence, or
 * when more than `MAX_PEERS` are known and it is the one heard of least recently.
 */
export class UdpForward {
  readonly #outer = createSocket('udp4');
  readonly #peers = new Map<string, Peer>();
  readonly #target: PortTarget;
  readonly #budget: PeerBudget;

  private constructor(target: PortTarget, budget: PeerBudget) {
    this.#target = target;
    this.#budget = budget;
    this.#outer.on('message', (message, from) => this.#fromPeer(message, from.address, from.port));
  }

  /** Rejects with the bind error (`EADDRINUSE` …). */
  static async listen(
    target: PortTarget,
    host: string,
    port: number,
    budget: PeerBudget = new PeerBudget(),
  ): Promise<UdpForward> {
    const forward = new UdpForward(target, budget);
    try {
      forward.#outer.bind({ address: host, port, exclusive: true });
      await once(forward.#outer, 'listening');
    } catch (error) {
      forward.#outer.close();
      throw error;
    }
    // A send that failed (peer gone, no route) concerns that datagram alone.
    forward.#outer.on('error', () => {});
    return forward;
  }

  get port(): number {
    return this.#outer.address().port;
  }

  async close(): Promise<void> {
    for (const key of this.#peers.keys()) this.#forget(key);
    const closed = once(this.#outer, 'close');
    this.#outer.close();
    await closed;
  }

  #fromPeer(message: Buffer, address: string, port: number): void {
    const key = `${address}:${port}`;
    const peer = this.#peers.get(key) ?? this.#meet(key, address, port);
    // All ports together have too many: as on a full network, the datagram is lost.
    if (peer === undefined) return;
    peer.timer.refresh();
    // Map order is the order of last use.
    this.#peers.delete(key);
    this.#peers.set(key, peer);
    if (peer.inner.getSendQueueSize() > MAX_QUEUED_BYTES) return;
    peer.inner.send(message, this.#target.port, this.#target.address, () => {});
  }

  #meet(key: string, address: string, port: number): Peer | undefined {
    if (this.#peers.size >= MAX_PEERS) this.#forgetOldest();
    if (!this.#budget.take()) {
      if (this.#peers.size === 0) return undefined;
      this.#forgetOldest();
      this.#budget.take();
    }
    const inner = createSocket('udp4');
    const peer = { inner, timer: setTimeout(() => this.#forget(key), PEER_IDLE_MS) };
    inner.on('error', () => this.#forget(key));
    inner.on('message', (message, from) => {
      // Only the guest's own port may answer in its name.
      if (from.address !== this.#target.address || from.port !== this.#target.port) return;
      peer.timer.refresh();
      if (this.#outer.getSendQueueSize() <= MAX_QUEUED_BYTES)
        this.#outer.send(message, port, address, () => {});
    });
    return peer;
  }

  #forgetOldest(): void {
    const [oldest] = this.#peers.keys();
    if (oldest !== undefined) this.#forget(oldest);
  }

  #forget(key: string): void {
    const peer = this.#peers.get(key);
    if (peer === undefined) return;
    this.#peers.delete(key);
    this.#budget.release();
    clearTimeout(peer.timer);
    peer.inner.close();
  }
}
