import { createSocket, type Socket } from 'node:dgram';
import { once } from 'node:events';
import type { PortTarget } from './port-forward.ts';

const MAX_PEERS = 512;
const PEER_IDLE_MS = 60_000;
/** Datagrams are dropped, as any router does, while this much waits to be sent. */
const MAX_QUEUED_BYTES = 1024 * 1024;

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

  private constructor(target: PortTarget) {
    this.#target = target;
    this.#outer.on('message', (message, from) => this.#fromPeer(message, from.address, from.port));
  }

  /** Rejects with the bind error (`EADDRINUSE` …). */
  static async listen(target: PortTarget, host: string, port: number): Promise<UdpForward> {
    const forward = new UdpForward(target);
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
    peer.timer.refresh();
    // Map order is the order of last use.
    this.#peers.delete(key);
    this.#peers.set(key, peer);
    if (peer.inner.getSendQueueSize() > MAX_QUEUED_BYTES) return;
    peer.inner.send(message, this.#target.port, this.#target.address, () => {});
  }

  #meet(key: string, address: string, port: number): Peer {
    if (this.#peers.size >= MAX_PEERS) {
      const [oldest] = this.#peers.keys();
      if (oldest !== undefined) this.#forget(oldest);
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

  #forget(key: string): void {
    const peer = this.#peers.get(key);
    if (peer === undefined) return;
    this.#peers.delete(key);
    clearTimeout(peer.timer);
    peer.inner.close();
  }
}
