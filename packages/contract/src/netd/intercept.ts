/**
 * What a runner and its interceptor (secrets in intercepted connections) say to each other over a Unix socket that the
 * interceptor listens at, and what netd says of a connection that it hands over. One JSON message a line.
 *
 * The rules are those of `messages.ts`: the runner says what there is, and repeats all of it on a new connection; `put`,
 * `remove`, `synced` and `ping` are answered by `done`. Values are held in memory only, and are in no message to the runner.
 */
import { Type, type Static } from 'typebox';
import { Ping, Remove, Seq, Stop, Synced, VmId } from './lines.ts';
import { NetdLogMessage } from './messages.ts';

/** Version of this protocol. */
export const INTERCEPT_PROTOCOL = 2;
/** Longest message to the interceptor: 64 values of 64 KiB, escaped. */
export const INTERCEPT_LINE_MAX_BYTES = 32 * 1024 * 1024;
export const INTERCEPT_REPLY_MAX_BYTES = 64 * 1024;
/** Longest line that announces a connection. */
export const HANDOVER_MAX_BYTES = 4 * 1024;

const Pem = Type.String({ maxLength: 4 * 1024 * 1024 });

export const InterceptSecret = Type.Object({
  value: Type.String(),
  /** Host names and `*.` patterns. */
  allowed_domains: Type.Array(Type.String({ maxLength: 255 })),
  /** Absent: the value may not be sent over plain HTTP. */
  allow_http: Type.Optional(Type.Boolean()),
  /** SHA-256 of the placeholders that stand for it in this sandbox. */
  placeholders: Type.Array(Type.String({ pattern: '^[0-9a-f]{64}$' })),
  /** The one in the sandbox's environment, which is written where a response contains the value. */
  placeholder: Type.Optional(Type.String({ maxLength: 64 })),
});
export type InterceptSecret = Static<typeof InterceptSecret>;

export const RunnerToInterceptor = Type.Union([
  Type.Object({
    type: Type.Literal('hello'),
    protocol: Type.Integer({ minimum: 1 }),
    /** Certificates of authorities, besides those of the host, that servers may be verified with. */
    extra_ca: Type.Optional(Pem),
  }),
  Type.Object({
    type: Type.Literal('put'),
    seq: Seq,
    vm_id: VmId,
    secrets: Type.Array(InterceptSecret, { maxItems: 4_096 }),
  }),
  Remove,
  Synced,
  Ping,
  /** Answers `sign`: an intermediate certificate for the key of that request. */
  Type.Object({ type: Type.Literal('certificate'), request: Type.String(), certificate: Pem }),
  Stop,
]);
export type RunnerToInterceptor = Static<typeof RunnerToInterceptor>;

export const InterceptorToRunner = Type.Union([
  /** The first message, before the runner has said anything. */
  Type.Object({
    type: Type.Literal('hello'),
    protocol: Type.Integer({ minimum: 1 }),
    version: Type.String({ maxLength: 64 }),
  }),
  Type.Object({ type: Type.Literal('done'), seq: Seq }),
  /** A PKCS #10 request, DER as base64: repeated until it is answered. */
  Type.Object({ type: Type.Literal('sign'), request: Type.String({ maxLength: 4_096 }) }),
  NetdLogMessage,
]);
export type InterceptorToRunner = Static<typeof InterceptorToRunner>;

/**
 * The first line of a connection that netd hands over; the bytes of the guest follow. netd has checked that the address is one
 * of the host: without TLS nothing else would prove it.
 */
export const Handover = Type.Object({
  vm_id: VmId,
  /** Of the SNI, or of the Host field: lower case, without port. */
  host: Type.String({ minLength: 1, maxLength: 253 }),
  tls: Type.Boolean(),
  /** Where the guest connected to. */
  address: Type.String({ pattern: '^\\d{1,3}(\\.\\d{1,3}){3}$' }),
  port: Type.Integer({ minimum: 1, maximum: 65_535 }),
});
export type Handover = Static<typeof Handover>;
