/**
 * What a runner and its store proxy (mounted object stores) say to each other over a Unix socket that the proxy listens at. One
 * JSON message a line. The rules are those of `intercept.ts`: the runner repeats everything on a new connection, credentials are
 * held in memory only, and are in no message to the runner.
 */
import { Type, type Static } from 'typebox';
import { Ping, Remove, Seq, Stop, Synced, VmId } from './lines.ts';
import { NetdLogMessage } from './messages.ts';

/** Version of this protocol. */
export const STORES_PROTOCOL = 2;
/** Longest message to the proxy: 8 mounts with three values of 64 KiB each, escaped. */
export const STORES_LINE_MAX_BYTES = 16 * 1024 * 1024;
export const STORES_REPLY_MAX_BYTES = 64 * 1024;

const Key = Type.String({ minLength: 1, maxLength: 64 * 1024 });

/** A mount of a sandbox, as the proxy serves it. */
export const ProxiedStore = Type.Object({
  /** What the guest signs with. */
  guest_access_key: Type.String({ minLength: 1, maxLength: 128 }),
  guest_secret_key: Type.String({ minLength: 1, maxLength: 128 }),
  /** Empty: AWS. */
  endpoint: Type.String({ maxLength: 2048 }),
  region: Type.String({ maxLength: 64 }),
  path_style: Type.Boolean(),
  bucket: Type.String({ minLength: 1, maxLength: 255 }),
  /** Without slashes at its ends. */
  prefix: Type.String({ maxLength: 1024 }),
  read_only: Type.Boolean(),
  /** Absent: they cannot be read, for this reason. */
  credentials: Type.Optional(
    Type.Object({
      access_key: Key,
      secret_key: Key,
      session_token: Type.Optional(Key),
    }),
  ),
  unusable: Type.Optional(Type.String({ maxLength: 1024 })),
});
export type ProxiedStore = Static<typeof ProxiedStore>;

export const RunnerToStoreProxy = Type.Union([
  Type.Object({
    type: Type.Literal('hello'),
    protocol: Type.Integer({ minimum: 1 }),
    /** Endpoints that are allowed besides those at public addresses; see `AddressPolicy`. */
    private_hosts: Type.Array(Type.String({ maxLength: 255 }), { maxItems: 1024 }),
    /** Certificates of authorities, besides those of the host, that endpoints may be verified with. */
    extra_ca: Type.Optional(Type.String({ maxLength: 4 * 1024 * 1024 })),
  }),
  Type.Object({
    type: Type.Literal('put'),
    seq: Seq,
    vm_id: VmId,
    /** Of the sandbox, which the firewall vouches for. */
    address: Type.String({ maxLength: 64 }),
    stores: Type.Array(ProxiedStore, { maxItems: 64 }),
  }),
  Remove,
  Synced,
  Ping,
  Stop,
]);
export type RunnerToStoreProxy = Static<typeof RunnerToStoreProxy>;

export const StoreProxyToRunner = Type.Union([
  /** The first message, before the runner has said anything. */
  Type.Object({
    type: Type.Literal('hello'),
    protocol: Type.Integer({ minimum: 1 }),
    version: Type.String({ maxLength: 64 }),
    /** Where it listens for guests. */
    port: Type.Integer({ minimum: 1, maximum: 65_535 }),
  }),
  Type.Object({ type: Type.Literal('done'), seq: Seq }),
  NetdLogMessage,
]);
export type StoreProxyToRunner = Static<typeof StoreProxyToRunner>;
