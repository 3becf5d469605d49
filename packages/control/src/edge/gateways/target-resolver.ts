import type { GatewayFunction, GatewayTarget } from '@releap/contract';

/** The identity of a credential. A grant ends when it is revoked. */
export type GrantedCredential =
  | { type: 'apiKey'; keyId: string; projectId: string }
  /** The sandbox's own access token. */
  | { type: 'sandbox'; projectId: string }
  /** A token of the endpoint; with the digest of a link, in hexadecimal, that link. */
  | { type: 'preview'; projectId: string; link?: string }
  /** A token of the function's public endpoint. */
  | { type: 'function'; projectId: string }
  /** A server of the control plane, or the gateway itself. */
  | { type: 'service'; projectId: string }
  /** None: the endpoint is public. */
  | { type: 'public'; projectId: string };

/** A target that the credential may reach, with its runner. */
export interface ResolvedTarget {
  /** UUID of the sandbox that serves it. */
  sandboxId: string;
  runnerId: string;
  /** The runner's data server. */
  dataUrl: string;
  credential: GrantedCredential;
  /** The endpoint that the target depends on, and its visibility at the time of the lookup. */
  endpoint?: { id: string; public: boolean };
  /** When the credential expires. */
  expiresAt?: Date;
}

/** A function that the credential may call. */
export interface ResolvedFunction {
  /** As of the lookup; its revision is compared with later ones. */
  function: GatewayFunction;
  credential: GrantedCredential;
  /** When the credential expires. */
  expiresAt?: Date;
}

export type Resolved = ResolvedTarget | ResolvedFunction;

/** The request of a gateway, while it is answered and as long as the gateway keeps the answer. */
export interface TargetRequest {
  /** The holder of leases; absent when the gateway did not say it. */
  readonly gatewayId: string | undefined;
  /** Aborted when the gateway no longer wants the answer, or is disconnected. */
  readonly signal: AbortSignal;
  /** Watches another id than `subject` did. Call it before reading what may change. */
  watch(subject: string): void;
  /** What was answered is no longer valid. */
  revoke(): void;
  /**
   * @param ended `released` by the gateway, or refused; `discarded` by the gateway, because it does not work; `disconnected`,
   *   so that the gateway may come back for it
   */
  onEnd(ended: (how: TargetEnd) => void): void;
}

export type TargetEnd = 'released' | 'discarded' | 'disconnected';

/** Authorizes one kind of target for gateways. */
export interface TargetResolver {
  /** As `GatewayTarget.kind` says it. */
  readonly kind: string;
  /** Its answers may take long, because something is started for them. */
  readonly waits?: boolean;
  /**
   * The id (mostly a UUID) whose changes invalidate a grant for this target, such as the sandbox's. It is watched from before
   * the lookup. Null when the target's name is malformed, or the id is not known yet.
   */
  subject(target: GatewayTarget): string | null;
  /**
   * May be called again for the same request when the target has changed meanwhile.
   * @param token the client's credential
   * @throws ApiError what the client is refused with: 401, 404 or 409
   */
  resolve(target: GatewayTarget, token: string | undefined, request: TargetRequest): Promise<Resolved>;
}
