/** Resources of a project that have an id and a name, and whose rows outlive their deletion: object stores, volumes. */
import { badRequest, conflict, quote, type CursorKind } from '@releap/contract';
import {
  isUniqueViolation,
  queryAll,
  queryOne,
  statement,
  type Database,
  type Queryable,
  type QueryResultRow,
  type Statement,
} from '@releap/database';
import type { IdGenerator } from '../../platform/idempotency/id-generator.ts';
import { lockProject } from './access.ts';
import type { ProjectScope } from './project-scope.ts';
import { BY_TIME, pagedList, type NextPage, type PageRequest } from '../../platform/paged-list.ts';

export interface NamedResource<Row extends QueryResultRow> {
  /** In the audit log. */
  kind: string;
  /** In messages, with its article: `an object store`. */
  one: string;
  many: string;
  /** Most that are not deleted. */
  most: number;
  /** The unique index of the names that are in use. */
  nameIndex: string;
  /** $1 id, $2 project */
  byId: Statement<Row>;
}

/**
 * Inserts a resource, once however often its request is retried.
 * @param insert its result is undefined when the project has the most allowed
 * @throws 400, 409 when the name is in use
 */
export async function insertNamed<Row extends QueryResultRow>(
  database: Database,
  { kind, one, many, most, nameIndex, byId }: NamedResource<Row>,
  { project, name, ids }: { project: ProjectScope; name: string; ids: IdGenerator },
  insert: (on: Queryable, id: string) => Promise<Row | undefined>,
): Promise<Row> {
  const id = ids.uuid();
  if (ids.retried) {
    const inserted = await queryOne(database.pool, byId, [id, project.id]);
    if (inserted !== undefined) return inserted;
  }
  const audit = project.audit(`${kind}.create`, { kind, id });
  try {
    return await database.transaction(async (on) => {
      await lockProject(on, project.id);
      const row = await insert(on, id);
      if (row === undefined)
        throw badRequest(
          `the project has ${most} ${many}, which is the most allowed: delete one first`,
          'limit_reached',
        );
      await audit?.(on);
      return row;
    });
  } catch (error) {
    if (isUniqueViolation(error, nameIndex))
      throw conflict(
        `the project has ${one} named ${quote(name)}: use another name, or delete it first`,
        'name_exists',
      );
    throw error;
  }
}

export interface NamedListQuery extends PageRequest {
  include_deleted?: boolean;
}

/** Most deleted resources in a list that is no page; the others are bounded when they are created. */
const LISTED_DELETED = 1000;

/**
 * Lists, newest first. @returns reads those of a project, all of them or a page
 * @param name of the statements
 * @param from the table, with the alias that the columns have
 */
export function namedLists<Row extends QueryResultRow>(
  name: string,
  kind: CursorKind,
  { columns, from }: { columns: string; from: string },
): (on: Queryable, projectId: string, query: NamedListQuery) => Promise<{ rows: Row[]; next: NextPage }> {
  const pages = pagedList<Row>(`${name}-page`, kind, {
    columns,
    from,
    where: 'project_id = $1 and ($2 or deleted_at is null)',
    parameters: 2,
    keys: BY_TIME,
    direction: 'desc',
  });
  /** $1 project */
  const LIST = statement<Row>(
    `${name}-list`,
    `select ${columns} from ${from} where project_id = $1 and deleted_at is null order by created_at desc, id desc`,
  );
  /** $1 project, $2 most deleted ones */
  const LIST_ALL = statement<Row>(
    `${name}-list-all`,
    `with live as (
       select ${columns} from ${from} where project_id = $1 and deleted_at is null
     ), retired as (
       select ${columns} from ${from} where project_id = $1 and deleted_at is not null
        order by created_at desc, id desc limit $2
     )
     select * from live union all select * from retired order by created_at desc, id desc`,
  );
  return async (on, projectId, { include_deleted: includeDeleted = false, ...page }) => {
    if (page.limit !== undefined || page.cursor !== undefined)
      return pages.page(on, [projectId, includeDeleted], page);
    const rows = includeDeleted
      ? await queryAll(on, LIST_ALL, [projectId, LISTED_DELETED])
      : await queryAll(on, LIST, [projectId]);
    return { rows, next: {} };
  };
}
