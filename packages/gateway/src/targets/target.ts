/** Kinds of targets: which requests they match, and their header policies. */
import type { IncomingHttpHeaders, OutgoingHttpHeaders } from 'node:http';
import type { ApiError, GatewayTarget, GuestService } from '@releap/contract';
import type { GrantLease } from '../control/grants.ts';
import type { HeaderPolicy } from '../http/headers.ts';

/** The part of a request that is used for routing. */
export interface RequestHead {
  method: string;
  /** Raw path and query. */
  url: string;
  headers: IncomingHttpHeaders;
  /** How many `Host` headers it has. */
  hosts: number;
  /** Of the client, or the proxy in front. */
  address: string;
  /** What the engine took out of the headers, if it did: the request's credential, null for none. */
  credential?: string | null;
}

/** An answer of the gateway itself. */
export interface OwnAnswer {
  status: number;
  headers: OutgoingHttpHeaders;
  body?: string;
}

/** The route of one request, before its authorization. */
export interface Route {
  /** The target for the control plane. */
  target: GatewayTarget;
  /** The client's credential; null for none, if the kind leaves the decision to control. */
  token: string | null;
  /** What serves it in the guest; undefined for the runner's data server. */
  service?: GuestService;
  /** Once it is authorized it is answered with this, and not forwarded. */
  redirect?: { location: string; cookie: string };
  /** What the client gets instead of the refusal of its credential; undefined for the error itself. */
  onRefused?: (refusal: ApiError) => OwnAnswer | undefined;
  /** Path and query at the runner, or in the guest. */
  upstreamPath: (lease: GrantLease) => string;
  headers: HeaderPolicy;
}

/**
 * A kind of target: the toolbox of a sandbox, a port of one, a function. Other protocols (SSH) have their own listener
 * and use `Grants` too. The control plane has a resolver of the same name for each kind.
 */
export interface TargetKind {
  /** As `GatewayTarget.kind` says it. */
  readonly kind: string;
  /**
   * Routes a request.
   * @returns undefined when it does not match this kind
   * @throws ApiError 400, 401 or 404 when it matches and is invalid
   */
  route(request: RequestHead): Route | undefined;
}
