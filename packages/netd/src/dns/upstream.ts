import { randomInt } from 'node:crypto';
import { createSocket } from 'node:dgram';
import { connect, isIPv6 } from 'node:net';
import dnsPacket, { type Packet } from 'dns-packet';
import type { NameServer } from '@releap/contract/netd';
import { frame, FrameReader } from './tcp-frames.ts';

/** Two tries of this long fit into the five seconds that a stub resolver waits. */
const TRY_MS = 2_000;
const EDNS_UDP_BYTES = 1232;

/** What an upstream said of a name and type. */
export interface UpstreamAnswer {
  rcode: string;
  answers: NonNullable<Packet['answers']>;
}

/** Asks the servers in turn until one answers. Rejects when none does. `signal` bounds the whole. */
export async function askUpstream(
  servers: readonly NameServer[],
  name: string,
  type: string,
  signal: AbortSignal,
): Promise<UpstreamAnswer> {
  let failure = new Error('no DNS upstream is known: /etc/resolv.conf names none');
  for (const server of servers) {
    signal.throwIfAborted();
    try {
      let packet = await askOverUdp(server, name, type, signal);
      if (packet.flag_tc === true) packet = await askOverTcp(server, name, type, signal);
      const rcode = packet.rcode ?? 'SERVFAIL';
      if (rcode === 'NOERROR' || rcode === 'NXDOMAIN') return { rcode, answers: packet.answers ?? [] };
      failure = new Error(`DNS upstream ${server.address} answered ${rcode}`);
    } catch (error) {
      failure = error instanceof Error ? error : new Error(String(error));
    }
  }
  throw failure;
}

/** A socket of its own for each question: the random port is what makes a forged answer hard to place. */
async function askOverUdp(
  server: NameServer,
  name: string,
  type: string,
  signal: AbortSignal,
): Promise<Packet> {
  const { id, bytes } = encodeQuestion(name, type);
  const socket = createSocket(isIPv6(server.address.split('%')[0] ?? '') ? 'udp6' : 'udp4');
  const limit = AbortSignal.any([signal, AbortSignal.timeout(TRY_MS)]);
  try {
    return await new Promise<Packet>((resolve, reject) => {
      limit.addEventListener('abort', () => reject(silent(server)), { once: true });
      socket.on('error', reject);
      socket.on('message', (message) => {
        const packet = decodeAnswer(message, id, name, type);
        if (packet !== undefined) resolve(packet);
      });
      socket.connect(server.port, server.address, () => socket.send(bytes));
    });
  } finally {
    socket.close();
  }
}

async function askOverTcp(
  server: NameServer,
  name: string,
  type: string,
  signal: AbortSignal,
): Promise<Packet> {
  const { id, bytes } = encodeQuestion(name, type);
  const socket = connect({ host: server.address, port: server.port });
  const limit = AbortSignal.any([signal, AbortSignal.timeout(TRY_MS)]);
  try {
    return await new Promise<Packet>((resolve, reject) => {
      limit.addEventListener('abort', () => reject(silent(server)), { once: true });
      const reader = new FrameReader();
      socket.on('error', reject);
      socket.on('close', () => reject(new Error(`DNS upstream ${server.address} closed the connection`)));
      socket.on('data', (chunk) => {
        for (const message of reader.push(chunk)) {
          const packet = decodeAnswer(message, id, name, type);
          if (packet !== undefined) resolve(packet);
        }
      });
      socket.write(frame(bytes));
    });
  } finally {
    socket.destroy();
  }
}

function silent(server: NameServer): Error {
  return new Error(`DNS upstream ${server.address} did not answer in time`);
}

function encodeQuestion(name: string, type: string): { id: number; bytes: Buffer } {
  const id = randomInt(65_536);
  const bytes = dnsPacket.encode({
    id,
    type: 'query',
    flags: dnsPacket.RECURSION_DESIRED,
    questions: [{ name, type, class: 'IN' }],
    additionals: [{ name: '.', type: 'OPT', udpPayloadSize: EDNS_UDP_BYTES, flags: 0 }],
  });
  return { id, bytes };
}

/** The packet when it is the answer to just this question; undefined for anything else that comes in. */
function decodeAnswer(bytes: Buffer, id: number, name: string, type: string): Packet | undefined {
  let packet: Packet;
  try {
    packet = dnsPacket.decode(bytes);
  } catch {
    // A truncated packet may end in the middle of a record; its header alone says that TCP is to be tried.
    if (bytes.length < 12 || bytes.readUInt16BE(0) !== id || (bytes.readUInt16BE(2) & 0x8200) !== 0x8200) {
      return undefined;
    }
    return { id, type: 'response', flag_tc: true };
  }
  if (packet.type !== 'response' || packet.id !== id) return undefined;
  const [question] = packet.questions ?? [];
  if (question?.name.toLowerCase() !== name || question.type !== type) return undefined;
  return packet;
}
