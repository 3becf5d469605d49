import dnsPacket, { type Answer, type Packet } from 'dns-packet';
import {
  type EgressRules,
  judgeAnswer,
  type NetdPin,
  normalizeName,
  parseIpv4,
  RateLimit,
} from '@releap/contract/netd';
import type { Denial } from '../denied/denials.ts';
import type { Facts, Log } from '../log.ts';
import { AnswerCache } from './answer-cache.ts';
import type { NameServer } from '@releap/contract/netd';
import { askUpstream, type UpstreamAnswer } from './upstream.ts';

/** A sandbox as the resolver knows it. */
export interface DnsClient {
  vmId: string;
  /** Absent: every name may be asked for. */
  rules?: EgressRules | undefined;
  /** Opens addresses for the sandbox; in force when it resolves. Called only with `rules`. */
  pin(pins: readonly NetdPin[]): Promise<void>;
  /** It is about to be told that a name has these addresses, and may use them for so long. */
  resolved(name: string, addresses: readonly NetdPin[]): void;
  /** Into the log that the tenant reads. */
  deny(denial: Denial): void;
}

const QUESTION_DEADLINE_MS = 5_000;
const MAX_IN_FLIGHT = 1024;
const MAX_IN_FLIGHT_PER_CLIENT = 64;
const MAX_ANSWERS = 100;
/** Questions of one sandbox in a second, and at once. */
const QUESTIONS = { perSecond: 200, burst: 400 };
/** What one sandbox may have written into the log in a minute. */
const LOG_LINES_PER_MINUTE = 20;
/** A question with EDNS and its options; longer ones are refused. */
const QUERY_MAX_BYTES = 1500;
const HEADER_BYTES = 12;
/** A guest hears of no longer time, so that what it remembers and what is pinned do not drift apart for long. */
const MAX_TTL_S = 3_600;
/** Programs continue to use an address a little longer than its TTL. */
const PIN_MIN_S = 60;
const PIN_GRACE_S = 60;
/** Size of an answer over UDP without EDNS (RFC 1035 section 4.2.1), and the most we send with it. */
const UDP_PLAIN_BYTES = 512;
const UDP_MAX_BYTES = 1232;

/** Types whose answers would tell of IPv6 addresses or of address hints that we cannot judge: answered empty. */
const EMPTY_TYPES = new Set(['AAAA', 'UNKNOWN_64', 'UNKNOWN_65', 'SVCB', 'HTTPS', 'A6']);
const REFUSED_TYPES = new Set(['ANY', 'AXFR', 'IXFR', 'TKEY', 'TSIG', 'OPT', 'RRSIG']);

/** Turns one question of a sandbox into one answer, by that sandbox's policy. */
export class Responder {
  readonly #servers: readonly NameServer[];
  readonly #log: Log;
  readonly #cache = new AnswerCache();
  /** Questions under way upstream, shared by all that ask the same. */
  readonly #asking = new Map<string, Promise<UpstreamAnswer>>();
  readonly #inFlight = new Map<DnsClient, number>();
  readonly #rates = new WeakMap<DnsClient, RateLimit>();
  readonly #logged = new WeakMap<DnsClient, RateLimit>();
  #total = 0;

  constructor(servers: readonly NameServer[], log: Log) {
    this.#servers = servers;
    this.#log = log;
  }

  /** The answer's bytes, or undefined for what deserves none. `maxBytes`: 65535 over TCP, absent over UDP. */
  async respond(message: Buffer, client: DnsClient, maxBytes?: number): Promise<Buffer | undefined> {
    if (!isPlainQuestion(message)) return formatError(message);
    if (!this.#mayAsk(client)) return undefined;
    let query: Packet;
    try {
      query = dnsPacket.decode(message);
    } catch {
      return formatError(message);
    }
    if (query.type !== 'query') return undefined;
    const limit = maxBytes ?? udpLimit(query);
    const flying = this.#inFlight.get(client) ?? 0;
    if (flying >= MAX_IN_FLIGHT_PER_CLIENT || this.#total >= MAX_IN_FLIGHT) {
      return encode(query, 'SERVFAIL', [], limit);
    }
    this.#inFlight.set(client, flying + 1);
    this.#total += 1;
    try {
      const { rcode, answers } = await this.#decide(query, client);
      return encode(query, rcode, answers, limit);
    } catch {
      return encode(query, 'SERVFAIL', [], limit);
    } finally {
      this.#total -= 1;
      const left = (this.#inFlight.get(client) ?? 1) - 1;
      if (left === 0) this.#inFlight.delete(client);
      else this.#inFlight.set(client, left);
    }
  }

  /** Addresses that `client` would be given for a name now; counts as a question of its. Rejects when no server answers. */
  async addressesOf(name: string, client: DnsClient): Promise<string[]> {
    if (!this.#mayAsk(client) || this.#total >= MAX_IN_FLIGHT) return [];
    const { answers } = await this.#ask(name, 'A');
    return followAliases(name, answers).flatMap(({ type, data }) => {
      const address = type === 'A' && typeof data === 'string' ? parseIpv4(data) : undefined;
      return address === undefined || judgeAnswer(client.rules, address) === 'refuse' ? [] : [String(data)];
    });
  }

  #mayAsk(client: DnsClient): boolean {
    const rate = this.#rates.get(client) ?? new RateLimit(QUESTIONS);
    this.#rates.set(client, rate);
    return rate.take();
  }

  async #decide(query: Packet, client: DnsClient): Promise<UpstreamAnswer> {
    const [question, ...more] = query.questions ?? [];
    if (query.opcode !== 'QUERY') return { rcode: 'NOTIMP', answers: [] };
    if (question === undefined || more.length > 0) return { rcode: 'FORMERR', answers: [] };
    const name = normalizeName(question.name);
    if (name === undefined || question.class !== 'IN' || REFUSED_TYPES.has(question.type)) {
      return { rcode: 'REFUSED', answers: [] };
    }
    // 'No such name' and not REFUSED: some C libraries wait for the whole time-out after a REFUSED.
    if (client.rules !== undefined && !client.rules.domains.matches(name)) {
      client.deny({ protocol: 'dns', name, reason: 'not_allowed' });
      this.#note(client, { name }, 'name denied by the egress policy');
      return { rcode: 'NXDOMAIN', answers: [] };
    }
    if (EMPTY_TYPES.has(question.type)) return { rcode: 'NOERROR', answers: [] };
    const said = await this.#ask(name, question.type);
    if (question.type !== 'A')
      return { rcode: said.rcode, answers: said.answers.filter((a) => a.type !== 'AAAA') };
    return await this.#judge(name, said, client);
  }

  async #judge(name: string, said: UpstreamAnswer, client: DnsClient): Promise<UpstreamAnswer> {
    const answers: Answer[] = [];
    const pins: NetdPin[] = [];
    const given: NetdPin[] = [];
    let refused = 0;
    for (const record of followAliases(name, said.answers)) {
      const ttl = Math.min(record.ttl ?? 0, MAX_TTL_S);
      if (record.type === 'A') {
        const address = typeof record.data === 'string' ? parseIpv4(record.data) : undefined;
        const verdict = address === undefined ? 'refuse' : judgeAnswer(client.rules, address);
        if (verdict === 'refuse') {
          refused += 1;
          continue;
        }
        const pin = { address: String(record.data), seconds: Math.max(ttl, PIN_MIN_S) + PIN_GRACE_S };
        // As long as the firewall has it open, which is twice the time that is asked for.
        given.push({ ...pin, seconds: 2 * pin.seconds });
        if (verdict === 'pin') pins.push(pin);
      }
      answers.push({ ...record, ttl });
    }
    if (refused > 0) {
      client.deny({ protocol: 'dns', name, reason: 'rebinding' });
      this.#note(client, { name, refused }, 'private addresses for a name were left out');
      if (!answers.some((record) => record.type === 'A')) return { rcode: 'NXDOMAIN', answers: [] };
    }
    // The firewall must know before the guest does, or its first connection would be refused.
    if (pins.length > 0) await client.pin(pins);
    client.resolved(name, given);
    return { rcode: said.rcode, answers };
  }

  /** Into the log, unless this sandbox has filled its part of that. */
  #note(client: DnsClient, facts: Facts, message: string): void {
    const limit =
      this.#logged.get(client) ??
      new RateLimit({ perSecond: LOG_LINES_PER_MINUTE / 60, burst: LOG_LINES_PER_MINUTE });
    this.#logged.set(client, limit);
    if (limit.take()) this.#log.info({ vm_id: client.vmId, ...facts }, message);
  }

  async #ask(name: string, type: string): Promise<UpstreamAnswer> {
    const key = `${type} ${name}`;
    const cached = this.#cache.get(key);
    if (cached !== undefined) return cached;
    const asked = this.#asking.get(key);
    if (asked !== undefined) return await asked;
    const asking = askUpstream(this.#servers, name, type, AbortSignal.timeout(QUESTION_DEADLINE_MS))
      .then(({ rcode, answers }) => ({ rcode, answers: answers.slice(0, MAX_ANSWERS) }))
      .finally(() => this.#asking.delete(key));
    this.#asking.set(key, asking);
    const answer = await asking;
    this.#cache.set(key, answer);
    return answer;
  }
}

/**
 * Looks at the header alone (RFC 1035 section 4.1.1): the decoder allocates memory for as many records as that announces, which
 * is 65,535 four times in twelve bytes.
 */
function isPlainQuestion(message: Buffer): boolean {
  if (message.length < HEADER_BYTES || message.length > QUERY_MAX_BYTES) return false;
  const [questions, answers, authorities, additionals] = [4, 6, 8, 10].map((at) => message.readUInt16BE(at));
  return questions === 1 && answers === 0 && authorities === 0 && (additionals ?? 0) <= 2;
}

/** Only the records that answer the question: the name's aliases in turn, and the addresses at their end. */
function followAliases(name: string, records: readonly Answer[]): Answer[] {
  const chain: Answer[] = [];
  let current = name;
  for (let step = 0; step < 16; step += 1) {
    const here = records.filter((record) => record.name.toLowerCase() === current);
    chain.push(...here.filter((record) => record.type === 'A'));
    const alias = here.find((record) => record.type === 'CNAME');
    if (alias === undefined || typeof alias.data !== 'string') break;
    chain.push(alias);
    current = alias.data.toLowerCase();
  }
  return chain;
}

function udpLimit(query: Packet): number {
  for (const record of query.additionals ?? []) {
    if ('udpPayloadSize' in record) {
      return Math.min(Math.max(record.udpPayloadSize, UDP_PLAIN_BYTES), UDP_MAX_BYTES);
    }
  }
  return UDP_PLAIN_BYTES;
}

function encode(query: Packet, rcode: string, answers: Answer[], limit: number): Buffer {
  const flags =
    dnsPacket.RECURSION_AVAILABLE |
    (query.flag_rd === true ? dnsPacket.RECURSION_DESIRED : 0) |
    (RCODES[rcode] ?? RCODES.SERVFAIL);
  const base = { id: query.id ?? 0, type: 'response' as const, questions: query.questions ?? [] };
  const whole = dnsPacket.encode({ ...base, flags, answers });
  if (whole.length <= limit) return whole;
  return dnsPacket.encode({ ...base, flags: flags | dnsPacket.TRUNCATED_RESPONSE, answers: [] });
}

/** Response codes of RFC 1035 section 4.1.1; they are the low four bits of the flags. */
const RCODES: Record<string, number> & { SERVFAIL: number } = {
  NOERROR: 0,
  FORMERR: 1,
  SERVFAIL: 2,
  NXDOMAIN: 3,
  NOTIMP: 4,
  REFUSED: 5,
};

/** 'Format error' with the id of a query that could not be read; nothing for a response or a stump. */
function formatError(message: Buffer): Buffer | undefined {
  if (message.length < 12 || (message.readUInt16BE(2) & 0x8000) !== 0) return undefined;
  return dnsPacket.encode({ id: message.readUInt16BE(0), type: 'response', flags: 1 });
}
