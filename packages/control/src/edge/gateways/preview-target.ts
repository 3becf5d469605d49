import {
  conflict,
  isLinkToken,
  notFound,
  parseSandboxId,
  quote,
  tokenDigest,
  tokenKind,
  unauthorized,
  type SandboxStatus,
} from '@releap/contract';
import { timingSafeEqual } from 'node:crypto';
import { queryOne, statement, type Database } from '@releap/database';
import type { Authenticator } from '../../platform/auth/authenticator.ts';
import { findPreviewLink } from '../endpoints/preview-links.ts';
import type { PreviewTokens } from '../endpoints/preview-tokens.ts';
import type { GrantedCredential, ResolvedTarget, TargetRequest, TargetResolver } from './target-resolver.ts';

interface Located {
  id: string;
  project_id: string;
  access_token_hash: Buffer;
  status: SandboxStatus;
  runner_id: string | null;
  data_url: string | null;
  endpoint_id: string | null;
  public: boolean | null;
}

const FIND = statement<Located>(
  'gateway-preview',
  `select s.id, s.project_id, s.access_token_hash, s.status, s.runner_id, r.data_url, e.id as endpoint_id, e.public
     from sandboxes s
     left join endpoints e on e.sandbox_id = s.id and e.port = $2
     left join runners r on r.id = s.runner_id
    where s.id = $1 and s.owner_kind = 'project' and s.status <> 'deleted' and ($3::text is null or s.region = $3)
      and not exists (select 1 from projects p where p.id = s.project_id and p.deleted_at is not null)`,
);

export interface PreviewTargetOptions {
  database: Database;
  authenticator: Authenticator;
  previewTokens: PreviewTokens;
}

/** @throws 409 while it does not run */
function placeOf(
  { id, status, runner_id: runnerId, data_url: dataUrl }: Located,
  name: string,
): Pick<ResolvedTarget, 'sandboxId' | 'runnerId' | 'dataUrl'> {
  if (status !== 'running' || runnerId === null || dataUrl === null)
    throw conflict(`${name} is ${status}, and must be running`, 'sandbox_not_running');
  return { sandboxId: id, runnerId, dataUrl };
}

interface Access {
  credential: GrantedCredential;
  expiresAt?: Date | null;
}

/**
 * An exposed port of a running sandbox. A public endpoint needs no credential; a private one a preview token, an API key of
 * the project or the sandbox's access token. Without a valid credential an unknown sandbox, another project's and a port
 * that is not exposed get the same answer. The name of a sandbox may also be the token of a link to one of its ports.
 */
export function previewTarget({
  database,
  authenticator,
  previewTokens,
}: PreviewTargetOptions): TargetResolver {
  /** What a credential opens; undefined when it is not valid for the sandbox. */
  async function accessOf(row: Located, token: string | undefined): Promise<Access | undefined> {
    const { project_id: projectId, endpoint_id: endpointId } = row;
    switch (token === undefined ? null : tokenKind(token)) {
      case 'apiKey': {
        // Without the cache: a revoked key must not get a grant.
        const principal = await authenticator.byApiKeyNow(token ?? '');
        if (principal?.projectId !== projectId) return undefined;
        return { credential: { type: 'apiKey', keyId: principal.keyId, projectId } };
      }
      case 'sandbox':
        return timingSafeEqual(tokenDigest(token ?? ''), row.access_token_hash)
          ? { credential: { type: 'sandbox', projectId } }
          : undefined;
      case 'preview': {
        const verified =
          endpointId === null ? undefined : await previewTokens.verify(token ?? '', endpointId);
        return verified && { credential: { type: 'preview', projectId }, expiresAt: verified.expiresAt };
      }
      default:
        return undefined;
    }
  }

  /** The host name has the token of a link, which alone decides. */
  async function resolveLink(token: string, port: number, request: TargetRequest): Promise<ResolvedTarget> {
    const ended = unauthorized(
      'this signed preview URL is unknown or has expired: request another one from the owner of the sandbox',
    );
    const link = await findPreviewLink(database, token);
    if (link === undefined || link.port !== port) throw ended;
    request.watch(link.sandboxId);
    const row = await queryOne(database.pool, FIND, [link.sandboxId, port, null]);
    if (row === undefined || row.endpoint_id !== link.endpointId) throw ended;
    return {
      ...placeOf(row, 'the sandbox'),
      credential: { type: 'preview', projectId: row.project_id, link: tokenDigest(token).toString('hex') },
      endpoint: { id: link.endpointId, public: row.public === true },
      expiresAt: link.expiresAt,
    };
  }

  return {
    kind: 'preview',
    subject: ({ sandbox = '' }) => parseSandboxId(sandbox)?.uuid ?? null,
    async resolve({ sandbox: shownId = '', port = 0 }, token, request) {
      if (isLinkToken(shownId)) return resolveLink(shownId, port, request);
      const id = parseSandboxId(shownId);
      const unknown = notFound(
        `there is no preview of port ${port} of sandbox ${quote(shownId)}`,
        'endpoint_not_found',
      );
      if (id === null) throw unknown;
      const row = await queryOne(database.pool, FIND, [id.uuid, port, id.region]);
      if (row === undefined) throw unknown;
      const access = await accessOf(row, token);
      if (row.endpoint_id === null) {
        if (access === undefined) throw unknown;
        throw notFound(
          `port ${port} of sandbox ${quote(shownId)} is not exposed; create an endpoint for it`,
          'endpoint_not_found',
        );
      }
      if (access === undefined && row.public !== true)
        throw unauthorized(
          'this preview is private: send its token in the header x-service-preview-token, or open a signed URL',
        );
      return {
        ...placeOf(row, `sandbox ${quote(shownId)}`),
        credential: access?.credential ?? { type: 'public', projectId: row.project_id },
        endpoint: { id: row.endpoint_id, public: row.public === true },
        ...(access?.expiresAt ? { expiresAt: access.expiresAt } : {}),
      };
    },
  };
}
