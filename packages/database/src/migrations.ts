/**
 * The migrations of this version, as files. Comments in the first lines of one may be:
 *
 * - `-- compatible-with: N`: servers that know the migrations up to N can run, and start, on the schema that this one
 *   leaves (it only expands; see docs/upgrading.md). Without it they refuse to start.
 * - `-- transaction: none`: its statements run one by one, outside a transaction (`create index concurrently` needs that).
 *   They are separated by lines `-- statement`, and each must be safe to run again.
 */
import { createHash } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';

export interface Migration {
  id: number;
  name: string;
  sql: string;
  checksum: string;
  compatibleWith?: number;
  /** If present, they run one by one, outside a transaction. */
  statements?: readonly string[];
}

const FOLDER = new URL('./migrations/', import.meta.url);

/** In order. Files are named `NNNN-what.sql`, without gaps from 0001. */
export async function readMigrations(folder: URL = FOLDER): Promise<Migration[]> {
  const files = (await readdir(folder)).filter((file) => file.endsWith('.sql')).sort();
  const migrations: Migration[] = [];
  for (const file of files) {
    const match = /^(\d{4})-([a-z0-9-]+)\.sql$/.exec(file);
    if (match?.[1] === undefined || match[2] === undefined) {
      throw new Error(`migration "${file}" must be named like 0001-what-it-does.sql`);
    }
    const id = Number(match[1]);
    if (id !== migrations.length + 1) {
      throw new Error(
        `migration "${file}" should have the number ${migrations.length + 1}: no gaps, none twice`,
      );
    }
    migrations.push(parseMigration(id, match[2], await readFile(new URL(file, folder), 'utf8')));
  }
  return migrations;
}

export function parseMigration(id: number, name: string, sql: string): Migration {
  const header = /^(?:--.*\n)*/.exec(sql)?.[0] ?? '';
  const compatible = /^-- compatible-with: (\d+)$/m.exec(header)?.[1];
  const alone = /^-- transaction: none$/m.test(header);
  return {
    id,
    name,
    sql,
    checksum: createHash('sha256').update(sql).digest('hex'),
    ...(compatible === undefined ? {} : { compatibleWith: Number(compatible) }),
    ...(alone
      ? { statements: sql.split(/^-- statement$/m).filter((text) => /^(?!--|\s*$)/m.test(text)) }
      : {}),
  };
}
