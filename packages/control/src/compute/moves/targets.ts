/** Targets of the moves of one pass: what the moves before have chosen is not chosen twice. */
import { queryAll, queryOne, statement, type Database } from '@releap/database';
import { readHosts } from '../scheduler/hosts.ts';
import { NEED, NEED_OF, toNeed, type NeedRow } from '../scheduler/need.ts';
import type { Overcommit } from '../scheduler/overcommit.ts';
import { allocation, plus, type Host, type Need } from '../scheduler/placement.ts';
import { COPY_HOSTS, type MoveRow } from './statements.ts';
import { chooseTarget } from './target.ts';

/** $1 sandboxes */
const NEEDS = statement<NeedRow>(
  'sandbox-move-needs',
  `select s.id, ${NEED} from ${NEED_OF} where s.id = any($1::uuid[])`,
);

export class Targets {
  readonly #database: Database;
  readonly #overcommit: Overcommit;
  readonly #moves: readonly MoveRow[];
  #hosts: Promise<Host[]> | undefined;

  constructor(database: Database, overcommit: Overcommit, moves: readonly MoveRow[]) {
    this.#database = database;
    this.#overcommit = overcommit;
    this.#moves = moves;
  }

  async choose(move: MoveRow): Promise<{ host: Host } | { reason: string }> {
    const { pool } = this.#database;
    this.#hosts ??= this.#read();
    const hosts = await this.#hosts;
    const row = await queryOne(pool, NEEDS, [[move.sandbox_id]]);
    if (row === undefined) return { reason: 'the sandbox is gone' };
    const need = ofMoved(row, this.#overcommit);
    const exclude = await queryAll(pool, COPY_HOSTS, [move.sandbox_id]);
    const chosen = chooseTarget(
      {
        need,
        source: hosts.find(({ id }) => id === move.source_id),
        hasMemory: move.has_memory,
        exclude: [move.source_id, ...exclude.map(({ copy_on: host }) => host)],
      },
      hosts,
      this.#overcommit,
    );
    if ('host' in chosen) this.#reserve(hosts, chosen.host.id, need);
    return 'host' in chosen ? chosen : { reason: chosen.reason };
  }

  /** With what moves in progress bring. */
  async #read(): Promise<Host[]> {
    const { pool } = this.#database;
    const coming = this.#moves.filter(({ status }) => status === 'storing' || status === 'placing');
    const hosts: Host[] = (await readHosts(pool, this.#overcommit)).map((host) => ({ ...host }));
    const needs = await queryAll(pool, NEEDS, [coming.map(({ sandbox_id: id }) => id)]);
    const targets = new Map(coming.map(({ sandbox_id: id, target_id: target }) => [id, target]));
    for (const row of needs) {
      const target = targets.get(row.id);
      if (target !== undefined && target !== null)
        this.#reserve(hosts, target, ofMoved(row, this.#overcommit));
    }
    return hosts;
  }

  #reserve(hosts: readonly Host[], id: string, need: Need): void {
    const host = hosts.find((one) => one.id === id);
    if (host !== undefined) host.used = plus(host.used, allocation(need, this.#overcommit));
  }
}

/** It brings what it was made from. */
function ofMoved(row: NeedRow, overcommit: Overcommit): Need {
  return { ...toNeed(row, overcommit), requiredRunnerId: null, holders: [], isBuilt: false, isDocker: false };
}
