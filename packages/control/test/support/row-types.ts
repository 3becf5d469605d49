/** The rows that statements declare in TypeScript, and those that PostgreSQL describes. */
import path from 'node:path';
import { types, type Connection, type PoolClient, type Submittable } from 'pg';
import type { Node } from 'typescript/unstable/ast';
import { isCallExpression, isIdentifier, isStringLiteral } from 'typescript/unstable/ast/is';
import { API, type Checker, type Type } from 'typescript/unstable/sync';

export interface Column {
  name: string;
  dataTypeID: number;
}

/** Prepares a statement without running it. @returns the columns of its result */
export async function describeStatement(
  client: PoolClient,
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

/** The row types of the calls `statement<Row>('name', …)` of a package. */
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
    const visit = (node: Node): void => {
      node.forEachChild(visit);
      if (!isCallExpression(node) || !isIdentifier(node.expression) || node.expression.text !== 'statement')
        return;
      const [name] = node.arguments;
      const [row] = node.typeArguments ?? [];
      if (name === undefined || row === undefined || !isStringLiteral(name)) return;
      const type = this.#checker.getTypeFromTypeNode(row);
      if (type !== undefined) this.#rows.set(name.text, type);
    };
    for (const file of project.program.getSourceFileNames())
      if (file.startsWith(sources)) project.program.getSourceFile(file)?.forEachChild(visit);
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
