/**
 * What a runner and its `netd` (DNS, port forwards and egress proxy of a host) say to each other over a Unix socket that netd listens
 * at. One JSON message a line.
 *
 * The rules that both sides rely on:
 * - The runner says what must be served, netd serves it. After `hello` the runner puts every sandbox and says `synced`:
 *   what it has not put by then ends. A runner that connects again repeats all of it, and what is unchanged is not
 *   interrupted.
 * - Each `put`, `remove`, `synced`, `forget_pins`, `denied` and `ping` has a `seq` and is answered by one `done` when it is true.
 * - netd is not privileged. It asks the runner to open the addresses that a name resolved to (`pin`) and holds the DNS
 *   answer back until it is told that they are open.
 * - One runner at a time: a new connection ends the one before. Both sides close the connection on a message that is not
 *   in this file.
 * - A runner replaces a netd of another `NETD_PROTOCOL` or `version`. It tells that to `drain`, and afterwards only what it has to
 *   `remove`: so these two, their answers and `hello` stay as they are in later versions.
 */
import { Type, type Static } from 'typebox';
import { Ping, Remove, Seq, Stop, Synced, VmId } from './lines.ts';
import { DENIAL_REASONS } from '../wire/compute/sandbox-logs.ts';

/** Version of this protocol. */
export const NETD_PROTOCOL = 4;
/** Longest message to netd (a policy may be long) and from it, in bytes. */
export const NETD_LINE_MAX_BYTES = 1024 * 1024;
export const NETD_REPLY_MAX_BYTES = 512 * 1024;
/** How long connections outlive the netd that has taken them. */
export const NETD_DRAIN_MS = 3_600_000;
/** Longest time that an address may be open for, in seconds. */
export const NETD_PIN_MAX_S = 2 * 3_660;

const Port = Type.Integer({ minimum: 1, maximum: 65_535 });
const Ipv4 = Type.String({ pattern: '^\\d{1,3}(\\.\\d{1,3}){3}$' });
const Cidr = Type.String({ pattern: '^\\d{1,3}(\\.\\d{1,3}){3}(/\\d{1,2})?$' });
const Proto = Type.Union([Type.Literal('tcp'), Type.Literal('udp')]);

const Hello = Type.Object({
  type: Type.Literal('hello'),
  protocol: Type.Integer({ minimum: 1 }),
  /** Where sandboxes' questions arrive. `port` is a wish: another is used when it is taken, see `dns`. */
  dns: Type.Object({ address: Ipv4, port: Type.Optional(Port) }),
  /** Name servers to ask, `address` or `address:port`: the only ones that the firewall lets netd speak to. Absent: none. */
  name_servers: Type.Optional(Type.Array(Type.String({ maxLength: 64 }), { maxItems: 16 })),
  /** Where connections that secrets are put into are handed over; see `intercept.ts`. */
  intercept_socket: Type.Optional(Type.String({ maxLength: 107 })),
  /** Address of the host at which ports are published. */
  listen_host: Type.String({ minLength: 1, maxLength: 255 }),
});

/** The policy of a sandbox, without entries that have no effect. */
const Egress = Type.Object({
  /** `name` or `*.name`. */
  domains: Type.Array(Type.String({ maxLength: 255 })),
  public_networks: Type.Array(Cidr),
  private_networks: Type.Array(Cidr),
});

const Forward = Type.Object({
  proto: Proto,
  vm_port: Port,
  /** Port of the host; absent: any free one. */
  host_port: Type.Optional(Port),
});
export type NetdForward = Static<typeof Forward>;

export const NetdSandbox = Type.Object({
  vm_id: VmId,
  /** Its address on this host: the source of its questions and the target of its forwards. */
  address: Ipv4,
  /** Absent: it may resolve every name. */
  egress: Type.Optional(Egress),
  /** Domains whose connections are handed over to the interceptor. Absent: as they are. */
  intercept: Type.Optional(Type.Array(Type.String({ maxLength: 255 }))),
  /** Absent: as they are. */
  forwards: Type.Optional(Type.Array(Forward, { maxItems: 256 })),
});
export type NetdSandbox = Static<typeof NetdSandbox>;

export const RunnerToNetd = Type.Union([
  Hello,
  Type.Object({ type: Type.Literal('put'), seq: Seq, sandbox: NetdSandbox }),
  /** Done when nothing leads to that sandbox's address any more. */
  Remove,
  Synced,
  /** What was pinned is not open any more. */
  Type.Object({ type: Type.Literal('forget_pins'), seq: Seq }),
  Ping,
  /** Answered with what netd has denied a sandbox. */
  Type.Object({ type: Type.Literal('denied'), seq: Seq, vm_id: VmId }),
  /**
   * Another netd takes its place: it closes what it listens at, and ends when the connections that it has passed on so far have, at the
   * latest after `NETD_DRAIN_MS`.
   */
  Type.Object({ type: Type.Literal('drain'), seq: Seq }),
  /** Answers `pin`: whether the addresses are open. */
  Type.Object({ type: Type.Literal('pinned'), id: Seq, granted: Type.Boolean() }),
  /** End: what is served ends with it. */
  Stop,
]);
export type RunnerToNetd = Static<typeof RunnerToNetd>;

/** An address that a sandbox may reach for the next `seconds`, because a name that it may use resolved to it. */
export const NetdPin = Type.Object({
  address: Ipv4,
  seconds: Type.Integer({ minimum: 1, maximum: NETD_PIN_MAX_S }),
});
export type NetdPin = Static<typeof NetdPin>;

/** What netd denied a sandbox, with others of the same kind. Times are those of the host's clock, in milliseconds. */
export const NetdDenial = Type.Object({
  protocol: Type.Enum(['dns', 'tcp'] as const),
  address: Type.Optional(Ipv4),
  port: Type.Optional(Port),
  name: Type.Optional(Type.String({ maxLength: 255 })),
  reason: Type.Enum(DENIAL_REASONS),
  count: Type.Integer({ minimum: 1 }),
  first_ms: Type.Integer({ minimum: 0 }),
  last_ms: Type.Integer({ minimum: 0 }),
});
export type NetdDenial = Static<typeof NetdDenial>;
/** Most of them that netd remembers of one sandbox. */
export const NETD_DENIALS_MAX = 512;

const ForwardState = Type.Object({
  proto: Proto,
  vm_port: Port,
  /** Where it is published; absent when it could not be, and then `error` is the code (`EADDRINUSE` …). */
  host_port: Type.Optional(Port),
  error: Type.Optional(Type.String({ maxLength: 64 })),
});
export type NetdForwardState = Static<typeof ForwardState>;

/** A log line of netd or the interceptor, which have no log of their own. */
export const NetdLogMessage = Type.Object({
  type: Type.Literal('log'),
  level: Type.Union([Type.Literal('error'), Type.Literal('warn'), Type.Literal('info')]),
  message: Type.String({ maxLength: 500 }),
  facts: Type.Record(
    Type.String({ maxLength: 64 }),
    Type.Union([Type.String({ maxLength: 1_000 }), Type.Number()]),
  ),
});
export type NetdLogMessage = Static<typeof NetdLogMessage>;

export const NetdToRunner = Type.Union([
  /** The first message, before the runner has said anything. */
  Type.Object({
    type: Type.Literal('hello'),
    protocol: Type.Integer({ minimum: 1 }),
    version: Type.String({ maxLength: 64 }),
    /** Where redirected connections of sandboxes are to be led, at the address that the runner opened. */
    egress_port: Type.Optional(Port),
  }),
  /** The name server listens at this port, for UDP and TCP; said again when that changes. */
  Type.Object({ type: Type.Literal('dns'), port: Port }),
  /** `forwards`: of a `put` that names forwards, all of that sandbox. */
  Type.Object({
    type: Type.Literal('done'),
    seq: Seq,
    forwards: Type.Optional(Type.Array(ForwardState, { maxItems: 256 })),
    denied: Type.Optional(Type.Array(NetdDenial, { maxItems: NETD_DENIALS_MAX })),
  }),
  Type.Object({
    type: Type.Literal('pin'),
    id: Seq,
    vm_id: VmId,
    pins: Type.Array(NetdPin, { minItems: 1, maxItems: 128 }),
  }),
  NetdLogMessage,
]);
export type NetdToRunner = Static<typeof NetdToRunner>;
