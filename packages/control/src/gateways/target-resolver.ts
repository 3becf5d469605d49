import type { GatewayTarget } from '@releap/contract';

/** What a credential was found to be. A grant ends when it is revoked. */
export type GrantedCredential =
  | { type: 'apiKey'; keyId: string; projectId: string }
  /** The sandbox's own access token. */
  | { type: 'sandbox'; projectId: string };

/** A target that the credential may reach, on the runner that has it. */
export interface ResolvedTarget {
  /** UUID of the sandbox that serves it. */
  sandboxId: string;
  runnerId: string;
  /** The runner's data server. */
  dataUrl: string;
  credential: GrantedCredential;
}

/** Decides on one kind of target, for gateways. */
export interface TargetResolver {
  /** As `GatewayTarget.kind` says it. */
  readonly kind: string;
  /**
   * The id (UUID) whose changes make a decision on this target untrue: of the sandbox, say. It is watched from before the
   * decision is made. Null when the target names nothing that could exist.
   */
  subject(target: GatewayTarget): string | null;
  /**
   * @param token the credential that the client showed
   * @throws ApiError what the client is refused with: 401, 404 or 409
   */
  resolve(target: GatewayTarget, token: string | undefined): Promise<ResolvedTarget>;
}
