import type { GatewayTarget } from '@releap/contract';

/** The identity of a credential. A grant ends when it is revoked. */
export type GrantedCredential =
  | { type: 'apiKey'; keyId: string; projectId: string }
  /** The sandbox's own access token. */
  | { type: 'sandbox'; projectId: string }
  /** A token of the endpoint. */
  | { type: 'preview'; projectId: string }
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

/** Authorizes one kind of target for gateways. */
export interface TargetResolver {
  /** As `GatewayTarget.kind` says it. */
  readonly kind: string;
  /**
   * The id (UUID) whose changes invalidate a grant for this target, such as the sandbox's. It is watched from before the
   * lookup. Null when the target's name is malformed.
   */
  subject(target: GatewayTarget): string | null;
  /**
   * @param token the client's credential
   * @throws ApiError what the client is refused with: 401, 404 or 409
   */
  resolve(target: GatewayTarget, token: string | undefined): Promise<ResolvedTarget>;
}
