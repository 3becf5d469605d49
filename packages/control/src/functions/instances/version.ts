/** Versions of functions, as their instances need them. */
import {
  columns,
  FUNCTION_VERSION_COLUMNS,
  statement,
  type FunctionRow,
  type FunctionVersionRow,
} from '@releap/database';
import { IS_DELETED } from '../versions/deleted-name.ts';

export interface InstanceVersion extends FunctionVersionRow, Pick<FunctionRow, 'name' | 'region'> {
  org_id: string;
  /** Since its deploy, in milliseconds. */
  age_ms: number;
}

const COLUMNS = `${columns('v', FUNCTION_VERSION_COLUMNS)}, f.name, f.region, p.org_id,
         (extract(epoch from now() - v.created_at) * 1000)::double precision as age_ms`;

/** Over `function_versions v`, with further columns. None of a deleted function or project. */
export const selectVersions = (further = ''): string => `select ${COLUMNS}${further}
    from function_versions v
    join functions f on f.id = v.function_id and not ${IS_DELETED('f')}
    join projects p on p.id = v.project_id and p.deleted_at is null`;

export const VERSION = statement<InstanceVersion>('instance-version', `${selectVersions()} where v.id = $1`);
