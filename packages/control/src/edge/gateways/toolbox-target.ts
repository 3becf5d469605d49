import { TOOLBOX_KEY } from '@releap/contract';
import { queryOne, statement } from '@releap/database';
import type { PreviewTargetOptions } from './preview-target.ts';
import { COLUMNS, runningSandboxTarget, type Located } from './running-sandbox-target.ts';
import type { TargetResolver } from './target-resolver.ts';

interface Exposed extends Located {
  endpoint_id: string;
  public: boolean;
}

/** $1 id, $2 region (null: any), $3 port */
const BY_ENDPOINT = statement<Exposed>(
  'gateway-toolbox-by-endpoint',
  `select ${COLUMNS}, e.id as endpoint_id, e.public
     from sandboxes s join endpoints e on e.sandbox_id = s.id and e.port = $3
     left join runners r on r.id = s.runner_id
    where s.id = $1 and s.owner_kind = 'project' and s.status <> 'deleted' and ($2::text is null or s.region = $2)
      and not exists (select 1 from projects p where p.id = s.project_id and p.deleted_at is not null)`,
);

/**
 * The toolbox of a sandbox: commands and files. Gateways send preview tokens only for its WebSockets; those that the facade
 * issues for one port open it.
 */
export const toolboxTarget = ({
  database,
  authenticator,
  previewTokens,
}: PreviewTargetOptions): TargetResolver =>
  runningSandboxTarget('toolbox', {
    database,
    authenticator,
    async byPreviewToken({ uuid, region }, token) {
      const row = await queryOne(database.pool, BY_ENDPOINT, [uuid, region, TOOLBOX_KEY.port]);
      const verified = row && (await previewTokens.verify(token, row.endpoint_id, 'toolbox'));
      if (row === undefined || verified === undefined) return undefined;
      return {
        row,
        credential: { type: 'preview', projectId: row.project_id },
        endpoint: { id: row.endpoint_id, public: row.public },
        ...(verified.expiresAt === null ? {} : { expiresAt: verified.expiresAt }),
      };
    },
  });
