/** What the gateway needs to know of a kind of target: which requests are for it, and what may cross on the way. */
import type { IncomingHttpHeaders } from 'node:http';
import type { GatewayTarget } from '@releap/contract';
import type { GrantLease } from '../control/grants.ts';
import type { HeaderPolicy } from '../http/headers.ts';

/** The part of a request that decides where it goes. */
export interface RequestHead {
  method: string;
  /** Path and query, as they came. */
  url: string;
  headers: IncomingHttpHeaders;
}

/** Where one request goes, before the control plane was asked. */
export interface Route {
  /** What the control plane is asked about. */
  target: GatewayTarget;
  /** The credential that the client showed; null when it showed none and the kind lets control decide. */
  token: string | null;
  /** Path and query at the runner. */
  upstreamPath: (lease: GrantLease) => string;
  headers: HeaderPolicy;
}

/**
 * A kind of target: the toolbox of a sandbox, a port of one, a function. What is not HTTP (SSH) has a listener of its own
 * and asks `Grants` for the same decisions. The control plane has a resolver of the same name for each kind.
 */
export interface TargetKind {
  /** As `GatewayTarget.kind` says it. */
  readonly kind: string;
  /**
   * Routes a request.
   * @returns undefined when it is not for this kind
   * @throws ApiError 400, 401 or 404 when it is, and cannot be served
   */
  route(request: RequestHead): Route | undefined;
}
