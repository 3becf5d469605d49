/** Adds to assignments where the secrets of a sandbox may be sent. Values are not part of an assignment. */
import { tokenKind } from '@releap/contract';
import type { SandboxSpec } from '@releap/contract/runner';
import { queryAll, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';
import type { EgressRoot } from '../../fleet/egress/egress-root.ts';
import type { AssignableRow } from './environment.ts';

export interface AssignmentSecrets {
  /** The same rows, with `egressSecrets` where there is anything. */
  withDomains(rows: readonly AssignableRow[]): Promise<AssignableRow[]>;
}

/** $1 sandboxes */
const DOMAINS = statement<{ id: string; domains: string[] }>(
  'sandbox-secrets-domains',
  `select a.sandbox_id as id, array_agg(distinct d.domain order by d.domain) as domains
     from sandbox_secrets a join secrets x on x.id = a.secret_id, jsonb_array_elements_text(x.allowed_domains) as d(domain)
    where a.sandbox_id = any($1::uuid[]) group by a.sandbox_id`,
);

export function createAssignmentSecrets(
  database: Database,
  root: EgressRoot,
  log: Logger,
): AssignmentSecrets {
  async function trust(): Promise<string | undefined> {
    try {
      return await root.certificate();
    } catch (error) {
      log.error({ err: error }, 'sandboxes start without their secrets: the egress root cannot be read');
      return undefined;
    }
  }
  return {
    async withDomains(rows) {
      const ids = rows.filter(mayHaveSecrets).map(({ id }) => id);
      const found = ids.length === 0 ? [] : await queryAll(database.pool, DOMAINS, [ids]);
      const certificate = found.length === 0 ? undefined : await trust();
      if (certificate === undefined) return [...rows];
      const domains = new Map(found.map((one) => [one.id, one.domains]));
      return rows.map((row): AssignableRow => {
        const own = domains.get(row.id);
        if (own === undefined) return row;
        const egressSecrets: SandboxSpec['egress_secrets'] = { domains: own, trust: certificate };
        return { ...row, egressSecrets };
      });
    },
  };
}

/** Whether its environment has a placeholder, or its memory may have one. */
function mayHaveSecrets({ desired, env, spec }: AssignableRow): boolean {
  if (desired === 'deleted') return false;
  return spec.origin !== null || Object.values(env).some((value) => tokenKind(value) === 'secretPlaceholder');
}
