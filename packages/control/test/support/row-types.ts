/** The rows that statements declare in TypeScript, and those that PostgreSQL describes. */
import path from 'node:path';
import { types, type Connection, type ClientBase, type Submittable } from 'pg';
import type { Node } from 'typescript/unstable/ast';
import {
  isCallExpression,
  isIdentifier,
  isNewExpression,
  isObjectLiteralExpression,
  isPropertyAccessExpression,
  isPropertyAssignment,
  isStringLiteral,
  isVariableDeclaration,
} from 'typescript/unstable/ast/is';
import { API, type Checker, type Type } from 'typescript/unstable/sync';

export interface Column {
  name: string;
  dataTypeID: number;
}

/** Prepares a statement without running it. @param client one that does not pipeline @returns the columns of its result */
export async function describeStatement(
  client: ClientBase,
  name: string,
  text: string,
): Promise<readonly Column[]> {
  const { promise, resolve, reject } = Promise.withResolvers<readonly Column[]>();
  let columns: readonly Column[] = [];
  const query = {
    submit(connection: Connection) {
      connection.parse({ name, text, types: [] }, true);
      connection.describe({ type: 'S', name }, true);
      connection.sync();
    },
    handleRowDescription: ({ fields }: { fields: readonly Column[] }) => (columns = fields),
    handleReadyForQuery: () => resolve(columns),
    handleError: reject,
  };
  client.query<Submittable>(query);
  return await promise;
}

const { builtins } = types;
/** What the driver makes of a value. Others, as JSON, are not compared. */
const TYPES: Readonly<Record<number, 'string' | 'number' | 'boolean' | 'Date' | 'Buffer'>> = {
  [builtins.BOOL]: 'boolean',
  [builtins.INT2]: 'number',
  [builtins.INT4]: 'number',
  [builtins.FLOAT4]: 'number',
  [builtins.FLOAT8]: 'number',
  [builtins.INT8]: 'string',
  [builtins.NUMERIC]: 'string',
  [builtins.TEXT]: 'string',
  [builtins.VARCHAR]: 'string',
  [builtins.UUID]: 'string',
  [builtins.DATE]: 'Date',
  [builtins.TIMESTAMPTZ]: 'Date',
  [builtins.BYTEA]: 'Buffer',
};

/** Methods of a `WorkTable` that declare statements: the name of the table comes before theirs. */
const DECLARING: readonly string[] = ['claiming', 'changing', 'sweeping'];

/** The variable that has a work table, and its name. */
function workTable(node: Node): [variable: string, name: string] | undefined {
  if (!isVariableDeclaration(node) || !isIdentifier(node.name)) return undefined;
  const { initializer } = node;
  if (initializer === undefined || !isNewExpression(initializer)) return undefined;
  if (!isIdentifier(initializer.expression) || initializer.expression.text !== 'WorkTable') return undefined;
  const [options] = initializer.arguments ?? [];
  if (options === undefined || !isObjectLiteralExpression(options)) return undefined;
  for (const one of options.properties) {
    if (!isPropertyAssignment(one) || !isIdentifier(one.name) || one.name.text !== 'name') continue;
    if (isStringLiteral(one.initializer)) return [node.name.text, one.initializer.text];
  }
  return undefined;
}

/** The variable whose method the call is, or none for `statement`; undefined when it declares nothing. */
function declarer(called: Node): string | null | undefined {
  if (isIdentifier(called)) return called.text === 'statement' ? null : undefined;
  if (!isPropertyAccessExpression(called) || !isIdentifier(called.expression)) return undefined;
  return isIdentifier(called.name) && DECLARING.includes(called.name.text)
    ? called.expression.text
    : undefined;
}

/** The row types of the calls `statement<Row>('name', …)` of a package, and of those of its work tables. */
export class DeclaredRows implements Disposable {
  readonly #api: API;
  readonly #checker: Checker;
  readonly #rows = new Map<string, Type>();

  /** @param tsconfig of the package */
  constructor(tsconfig: string) {
    this.#api = new API({ cwd: path.dirname(tsconfig) });
    const project = this.#api.updateSnapshot({ openProject: tsconfig }).getProject(tsconfig);
    if (project === undefined) throw new Error(`${tsconfig} is no project`);
    this.#checker = project.checker;
    const sources = path.join(path.dirname(tsconfig), 'src/');
    const tables = new Map<string, string>();
    const found: { table: string | null; name: string; row: Type }[] = [];
    const visit = (node: Node): void => {
      node.forEachChild(visit);
      const table = workTable(node);
      if (table !== undefined) tables.set(...table);
      if (!isCallExpression(node)) return;
      const of = declarer(node.expression);
      const [name] = node.arguments;
      const [row] = node.typeArguments ?? [];
      if (of === undefined || name === undefined || row === undefined || !isStringLiteral(name)) return;
      const type = this.#checker.getTypeFromTypeNode(row);
      if (type !== undefined) found.push({ table: of, name: name.text, row: type });
    };
    for (const file of project.program.getSourceFileNames())
      if (file.startsWith(sources)) project.program.getSourceFile(file)?.forEachChild(visit);
    for (const { table, name, row } of found)
      this.#rows.set(table === null ? name : `${tables.get(table)}-${name}`, row);
  }

  get size(): number {
    return this.#rows.size;
  }

  /** How the declared row of a statement differs from its columns. */
  differences(name: string, columns: readonly Column[]): string[] {
    const row = this.#rows.get(name);
    if (row === undefined) return [];
    const declared = new Map(
      this.#checker.getPropertiesOfType(row).map((one) => [one.name, this.#checker.getTypeOfSymbol(one)]),
    );
    const missing = [...declared.keys()].filter((one) => !columns.some((column) => column.name === one));
    const others = columns.filter((column) => !declared.has(column.name));
    return [
      ...missing.map((one) => `${name}: has no column ${one}`),
      ...others.map((one) => `${name}: column ${one.name} is not declared`),
      ...columns.flatMap((column) => {
        const type = declared.get(column.name);
        const wanted = TYPES[column.dataTypeID];
        if (type === undefined || wanted === undefined || this.#is(type, wanted)) return [];
        return `${name}: column ${column.name} is a ${wanted}, declared as ${this.#checker.typeToString(type)}`;
      }),
    ];
  }

  #is(type: Type, wanted: string): boolean {
    const checker = this.#checker;
    const value = checker.getNonNullableType(type) ?? type;
    if (wanted === 'string') return checker.isTypeAssignableTo(value, checker.getStringType());
    if (wanted === 'number') return checker.isTypeAssignableTo(value, checker.getNumberType());
    if (wanted === 'boolean') return checker.isTypeAssignableTo(value, checker.getBooleanType());
    return checker.typeToString(value).replace(/<.*/, '') === wanted;
  }

  [Symbol.dispose](): void {
    this.#api.close();
  }
}
