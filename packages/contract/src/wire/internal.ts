/**
 * What the processes of one installation ask of the control plane, beside the runners' link. All of it is
 * authorized by the internal token and reachable by no one else.
 */
import { Type, type Static } from 'typebox';
import { SandboxStatus } from './sandbox-status.ts';

/** `POST`: who holds this sandbox, and may the bearer of this token enter? 401, 404 and 409 are for the caller. */
export const RESOLVE_PATH = '/internal/resolve';

export const ResolveRequest = Type.Object({
  vm_id: Type.String(),
  /** As it came: a project's API key or the sandbox's access token. */
  token: Type.String({ writeOnly: true }),
});
export type ResolveRequest = Static<typeof ResolveRequest>;

export const ResolveResponse = Type.Object({
  /** The runner's data server: `http://host:port` or `unix:/absolute/path.sock`. */
  data_url: Type.String(),
  /** UUID, as the runner knows it. */
  vm_id: Type.String(),
  status: SandboxStatus,
});
export type ResolveResponse = Static<typeof ResolveResponse>;

/** A positive answer may be used again for this long; a refusal never. Bounds how long a revoked key still works. */
export const RESOLVE_CACHE_MS = 900;

/** The path of the web socket that runners dial; see docs/runner-protocol.md. */
export const RUNNER_LINK_PATH = '/internal/runners/link';
