/**
 * Messages between a gateway and the control plane, over one WebSocket that the gateway dials
 * (`GET /internal/gateways/link` on the internal listener, authorized by the gateway's credential). JSON text frames,
 * one message each.
 *
 * Rules of both sides:
 * - A gateway sends `resolve` for a target and a credential and gets a `grant` or a `refusal`. It may use the grant
 *   again until its `ttl_ms` has passed, control has revoked it, or the link has been silent for `GATEWAY_SILENT_MS`.
 * - Control remembers which grants each link holds and sends `revoke` as soon as one of them is no longer valid: the
 *   sandbox has moved or does not run, the credential was revoked. Answers and revocations share one ordered
 *   connection, so a grant that arrives after a revocation is newer than it.
 * - Control sends a `tick` every `GATEWAY_TICK_MS`. Without ticks a gateway might miss a revocation, so it
 *   stops using its grants. Together this bounds how long a revoked credential still works to one second.
 * - Unknown message types and unknown fields are ignored. A target of an unknown kind is refused with 501.
 *
 * Functions: `function` is answered with a `function` message, the configuration of the version that is current.
 * `function-instance` is answered with the `grant` of one sandbox that serves the version, leased to this gateway alone. Each
 * such request without `instance` leases another sandbox and waits while it starts; `release` ends the wait or the lease.
 * With `instance` it renews the lease, also on a new connection; another gateway may have it by then (409). A renewal has the
 * id of the lease, and does not end it if it is refused with 503. The start of an instance is charged until its gateway says that the
 * handler listens, and at most for `HANDLER_LISTEN_MS`.
 */
import { Type, type Static } from 'typebox';
import { REVERSE_ADDRESS } from '../runner/link.ts';
import { ExceededQuota } from '../wire/tenancy/quota.ts';

/** Path of the WebSocket that gateways dial. */
export const GATEWAY_LINK_PATH = '/internal/gateways/link';
/** Version of this protocol. */
export const GATEWAY_PROTOCOL = 1;
/** How often control sends `tick`, in milliseconds. */
export const GATEWAY_TICK_MS = 250;
/** A gateway that has received nothing for this long stops using its grants, in milliseconds. */
export const GATEWAY_SILENT_MS = 750;
/** Largest message on this link, in bytes. A larger one closes it. */
export const GATEWAY_MESSAGE_MAX_BYTES = 256 * 1024;
/** Most grants that one gateway holds; it releases the least recently used one for a new one. */
export const GATEWAY_GRANTS_MAX = 20_000;

const RequestId = Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER });

/** The target of a request. `kind` decides which further fields control reads. */
export const GatewayTarget = Type.Object({
  kind: Type.String({ minLength: 1, maxLength: 40 }),
  /** From the client: a sandbox id, region-tagged or a bare UUID. Of the kind `preview` also the token of a link. */
  sandbox: Type.Optional(Type.String({ maxLength: 128 })),
  /** Of the kind `preview`: the port in the sandbox. */
  port: Type.Optional(Type.Integer({ minimum: 1, maximum: 65_535 })),
  /** Of the kind `function`: its name, from the client. */
  function: Type.Optional(Type.String({ maxLength: 128 })),
  /** Of the kind `function`: the project of a public endpoint, from the client; absent when the credential names it. */
  project: Type.Optional(Type.String({ maxLength: 128 })),
  /** Of the kind `function-instance`: the version that it serves (UUID). */
  version_id: Type.Optional(Type.String({ maxLength: 40 })),
  /** Of the kind `function-instance`: UUID of the sandbox that this gateway has leased already. */
  instance: Type.Optional(Type.String({ maxLength: 40 })),
});
export type GatewayTarget = Static<typeof GatewayTarget>;

const GatewayHello = Type.Object({
  type: Type.Literal('hello'),
  protocol: Type.Integer({ minimum: 1 }),
  /** Kinds of targets that this gateway routes. */
  kinds: Type.Array(Type.String({ maxLength: 40 }), { maxItems: 32 }),
  /** UUID of this gateway process: the holder of its leases, also over a new connection. */
  gateway_id: Type.Optional(Type.String({ maxLength: 40 })),
});

const Resolve = Type.Object({
  type: Type.Literal('resolve'),
  /** Chosen by the gateway, unique on this link; the response and later revocations name it. */
  id: RequestId,
  target: GatewayTarget,
  /** The client's credential. It is never logged or stored. */
  token: Type.Optional(Type.String({ maxLength: 4096, writeOnly: true })),
  /** The span that asks (W3C Trace Context), while traces are on. */
  traceparent: Type.Optional(Type.String({ maxLength: 55 })),
});

/** The gateway no longer uses these; control may forget them. */
const Release = Type.Object({
  type: Type.Literal('release'),
  ids: Type.Array(RequestId, { maxItems: 1_000 }),
  /** Of `function-instance`: the handler died or hangs, so that no gateway is to lease these sandboxes again. */
  discard: Type.Optional(Type.Boolean()),
});

/**
 * Requests or connections have used these grants since the last such message, which is at most `GATEWAY_ACTIVE_MS` ago. Sandboxes
 * that stop without activity stay.
 */
const Active = Type.Object({
  type: Type.Literal('active'),
  ids: Type.Array(RequestId, { maxItems: 1_000 }),
});
export const GATEWAY_ACTIVE_MS = 30_000;

/** How long the handler of a new instance may take until it listens, in milliseconds. */
export const HANDLER_LISTEN_MS = 120_000;
/**
 * The handlers of these leased instances listen. It is sent once, and again on each new link. Gateways of releases before do not send
 * it: they are charged for the whole of `HANDLER_LISTEN_MS`.
 */
const Listening = Type.Object({
  type: Type.Literal('listening'),
  instances: Type.Array(
    Type.Object({
      /** UUID of the sandbox. */
      id: Type.String({ maxLength: 40 }),
      /** Since when, in milliseconds before the message. */
      for_ms: Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER }),
    }),
    { maxItems: 1_000 },
  ),
});

/** A runner that accepts no connections is to open some to this gateway. It is sent again while a request waits for one. */
const Dial = Type.Object({
  type: Type.Literal('dial'),
  runner_id: Type.String({ maxLength: 40 }),
  /** Where this gateway accepts them. */
  address: Type.String(REVERSE_ADDRESS),
});

export const GatewayMessage = Type.Union([GatewayHello, Resolve, Release, Active, Listening, Dial]);
export type GatewayMessage = Static<typeof GatewayMessage>;

const Welcome = Type.Object({
  type: Type.Literal('welcome'),
  protocol: Type.Integer({ minimum: 1 }),
});

const GrantMessage = Type.Object({
  type: Type.Literal('grant'),
  id: RequestId,
  /** UUID of the sandbox. */
  vm_id: Type.String(),
  /** Whom the certificate of its data server names; absent from earlier versions. */
  runner_id: Type.Optional(Type.String()),
  /** The runner's data server: `https://host:port`, `unix:/absolute/path.sock`, or `reverse:` where the runner opens the connections. */
  data_url: Type.String(),
  /** Token for the runner's data server, for this sandbox. */
  data_token: Type.String({ writeOnly: true }),
  /** Of the kind `preview`: whether the endpoint is public, so that a credential was not needed. */
  public: Type.Optional(Type.Boolean()),
  /** How long the grant may be used, in milliseconds from its arrival. */
  ttl_ms: Type.Integer({ minimum: 1 }),
});

/** What a gateway needs to know to serve a version of a function. */
export const GatewayFunction = Type.Object({
  /** UUID of the function. */
  id: Type.String(),
  project_id: Type.String(),
  /** The organization, which shares the gateway with others. Absent from a control server of the release before. */
  org_id: Type.Optional(Type.String()),
  name: Type.String(),
  version_id: Type.String(),
  version: Type.Integer({ minimum: 1 }),
  /** Where its handler listens. */
  port: Type.Integer({ minimum: 1, maximum: 65_535 }),
  timeout_s: Type.Integer({ minimum: 1 }),
  scaledown_window_s: Type.Integer({ minimum: 1 }),
  max_concurrency: Type.Integer({ minimum: 1 }),
  /** Null: no bound. Control enforces it over all gateways. */
  max_instances: Type.Union([Type.Integer({ minimum: 1 }), Type.Null()]),
  /** Grows with every change of the function. */
  revision: Type.Integer({ minimum: 1 }),
  /** The caller is a server of the control plane, which records the invocation itself. */
  dispatched: Type.Optional(Type.Boolean()),
});
export type GatewayFunction = Static<typeof GatewayFunction>;

const FunctionMessage = Type.Object({
  type: Type.Literal('function'),
  id: RequestId,
  function: GatewayFunction,
  /** How long it may be used, in milliseconds from its arrival. */
  ttl_ms: Type.Integer({ minimum: 1 }),
});

/** Other instances or sandboxes need capacity, or there is a newer version of these functions: end instances that are idle. */
const Pressure = Type.Object({
  type: Type.Literal('pressure'),
  function_ids: Type.Array(Type.String(), { maxItems: 1_000 }),
  /** UUIDs of instances that must get no further requests, and end with the last one that they serve. Others have none of them. */
  instances: Type.Optional(Type.Array(Type.String(), { maxItems: 1_000 })),
  /** Of these instances (UUIDs), end up to `most` that are frozen, those that have served nothing for longest first. Others have none of them. */
  idle: Type.Optional(
    Type.Object({
      instances: Type.Array(Type.String(), { maxItems: 1_000 }),
      most: Type.Integer({ minimum: 1 }),
    }),
  ),
});

const Refusal = Type.Object({
  type: Type.Literal('refusal'),
  id: RequestId,
  /** HTTP status for the client. */
  status: Type.Integer({ minimum: 400, maximum: 599 }),
  error: Type.String(),
  /** An `ErrorCode`. Earlier servers leave it out. */
  code: Type.Optional(Type.String()),
  /** With 429: the version of a function has not been tried yet, so there is no instance; ask again. Earlier servers leave it out. */
  not_tried_yet: Type.Optional(Type.Boolean()),
  /** With 429: the quota of its organization that an instance would exceed. */
  quota: Type.Optional(ExceededQuota),
});

const Revoke = Type.Object({
  type: Type.Literal('revoke'),
  ids: Type.Array(RequestId),
  /** The credential itself was revoked: connections that were opened with it are closed too. */
  disconnect: Type.Boolean(),
});

const Tick = Type.Object({ type: Type.Literal('tick') });

export const GatewayControlMessage = Type.Union([
  Welcome,
  GrantMessage,
  FunctionMessage,
  Pressure,
  Refusal,
  Revoke,
  Tick,
]);
export type GatewayPressure = Static<typeof Pressure>;
export type GatewayControlMessage = Static<typeof GatewayControlMessage>;
export type GatewayGrant = Static<typeof GrantMessage>;
export type GatewayFunctionGrant = Static<typeof FunctionMessage>;
