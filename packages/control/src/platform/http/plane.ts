/**
 * A plane: operations that one kind of caller uses, with their own guard, error form, 404 and body parsers. It is a
 * Fastify plugin, so what one plane sets does not reach another, and it can be mounted on any server.
 */
import type { Readable } from 'node:stream';
import {
  ApiError,
  errorBody,
  fastifySchema,
  IDEMPOTENCY_HEADER,
  notFound,
  operationErrors,
  pathCodes,
  REPLAYED_HEADER,
  requestValidator,
  validate,
  type Operation,
  type Security,
} from '@releap/contract';
import type {
  FastifyInstance,
  FastifyPluginCallback,
  FastifyReply,
  FastifyRequest,
  onRequestHookHandler,
  RouteOptions,
} from 'fastify';
import type { Static, TSchema } from 'typebox';
import type { Principal } from '../auth/authenticator.ts';
import type { RunnerIdentity } from '../credentials/runner-credentials.ts';
import type { Caller } from '../auth/caller.ts';
import type { ObserveRequest } from '../metrics/instruments.ts';
import { RANDOM, type IdGenerator } from '../idempotency/id-generator.ts';
import type { Idempotency } from '../idempotency/idempotency.ts';
import { abortSignalOf } from './abort-signal.ts';
import { acceptJson } from './bodies.ts';
import { answerError, type AnswerError } from './errors.ts';
import { subjectOf, type Operator } from './identity.ts';
import { acceptUploads, uploadOf, type Upload } from './uploads.ts';

declare module 'fastify' {
  interface FastifyContextConfig {
    /** Those of the operation, by its contract. */
    errorCodes?: ReadonlySet<string>;
  }
}

type Of<O extends Operation, K extends 'params' | 'query' | 'body'> = O[K] extends TSchema
  ? Static<O[K]>
  : undefined;

/** What a handler of this operation must return: the contract's response, or text or bytes if it is not JSON. */
export type Answer<O extends Operation> = O['success']['response'] extends { schema: infer Schema }
  ? O['success']['response'] extends { contentType: string }
    ? string | Buffer | Readable
    : Schema extends TSchema
      ? Static<Schema>
      : never
  : void;

export interface Call<O extends Operation> {
  params: Of<O, 'params'>;
  query: Of<O, 'query'>;
  /** Of a JSON body; undefined while `upload` is there. */
  body: O extends { consumes: readonly string[] } ? Of<O, 'body'> | undefined : Of<O, 'body'>;
  /** The streamed body, if the operation consumes more than JSON; null when the body is JSON. */
  upload: O extends { consumes: readonly string[] } ? Upload | null : never;
  /** The project of the API key. */
  principal: O['security'] extends 'workload' ? Principal : never;
  /** The signed-in user. */
  caller: O['security'] extends 'management' ? Caller : never;
  operator: O['security'] extends 'operator' ? Operator : never;
  /** The runner of the credential. */
  runner: O['security'] extends 'runner' ? RunnerIdentity : never;
  request: FastifyRequest;
  reply: FastifyReply;
  /** Generates the ids and tokens of created rows, so that a repeated request creates nothing twice. Not for uploads. */
  ids: IdGenerator;
  /**
   * With an upload, runs what creates rows once under the `Idempotency-Key` of the request.
   * @param content what the upload has said, by which a repeated request is recognized; JSON
   */
  once: <T>(content: unknown, work: (ids: IdGenerator) => Promise<T>) => Promise<T>;
  /** Aborted when the client disconnects or the server stops. Made on first use. */
  abortSignal: () => AbortSignal;
}

export type Handler<O extends Operation> = (call: Call<O>) => Promise<Answer<O>> | Answer<O>;

export interface Plane<S extends Security = Security> {
  /** Adds an operation of the contract with its handler. Call it before the plane is mounted. */
  operation<O extends Operation & { security: S }>(operation: O, handler: Handler<O>): void;
  /** The plane as a Fastify plugin. */
  readonly plugin: FastifyPluginCallback;
}

type RequestGuard = onRequestHookHandler | ((request: FastifyRequest, reply: FastifyReply) => Promise<void>);

export interface PlaneOptions {
  /** Authenticates a request and sets its identity, or refuses it. */
  guard?: RequestGuard;
  /** Operations with a guard of their own; null for none. */
  exceptions?: ReadonlyMap<Operation, RequestGuard | null>;
  idempotency: Idempotency;
  /** Called after each answer; for metrics. */
  onAnswer?: ObserveRequest | undefined;
  /** Base path of the plane. With one, it has a 404 of its own. */
  prefix?: string;
  /** The response to an unknown path below its prefix. */
  answerNotFound?: (request: FastifyRequest, reply: FastifyReply) => void;
  /** Writes an error in this plane's form. */
  answerError?: AnswerError;
}

export function createPlane<S extends Security>(options: PlaneOptions): Plane<S> {
  const { prefix = '', idempotency } = options;
  const routes: ((scope: FastifyInstance) => void)[] = [];
  let mounted = false;

  const plugin: FastifyPluginCallback = (scope, _options, done) => {
    mounted = true;
    scope.setErrorHandler(options.answerError ?? answerError);
    scope.setValidatorCompiler<TSchema>(({ schema, httpPart, url }) => validatorOf(schema, httpPart, url));
    acceptJson(scope);
    if (prefix !== '') scope.setNotFoundHandler(options.answerNotFound ?? routeNotFound);
    for (const add of routes) add(scope);
    done();
  };

  return {
    operation(operation, handler) {
      if (mounted) throw new Error(`${operation.method} ${operation.path}: its plane is mounted already`);
      if (!operation.path.startsWith(prefix)) throw new Error(`${operation.path} is not below ${prefix}`);
      routes.push((scope) => addRoute(scope, operation, handler, options));
    },
    plugin: (scope, _options, done) => {
      scope.register(plugin, { prefix });
      done();
    },
  };

  function addRoute(
    scope: FastifyInstance,
    operation: Operation,
    handler: Handler<Operation>,
    { guard: common, exceptions, onAnswer }: PlaneOptions,
  ): void {
    const own = exceptions?.get(operation);
    const guard = own === undefined ? common : own;
    const schema = fastifySchema(operation);
    // Plain JSON.stringify: faster for these records than a compiled serializer with unions. The compiler checks, through
    // `Answer`, that responses have the contract's form.
    delete schema.response;
    const { status, response } = operation.success;
    const { body: bodySchema, consumes } = operation;
    const streamed = consumes !== undefined;
    if (streamed) {
      // Only a JSON body is validated; `request.body` of the others is a stream.
      delete schema.body;
      const takesJson = consumes.includes('application/json') || consumes.includes('*/*');
      if (operation.idempotent === true && !takesJson)
        throw new Error(`${operation.path}: without JSON bodies it cannot support Idempotency-Key`);
    }
    const route: RouteOptions = {
      method: operation.method,
      url: operation.path.slice(prefix.length),
      schema,
      config: {
        streamedBody: streamed,
        errorCodes: new Set(operationErrors(operation).flatMap(([, , codes]) => codes)),
      },
      ...(guard === undefined || guard === null ? {} : { onRequest: guard }),
      ...(onAnswer === undefined
        ? {}
        : {
            onResponse: (_request, reply, answered) => {
              onAnswer(operation, reply.statusCode, reply.elapsedTime / 1000);
              answered();
            },
          }),
      handler: async (request, reply) => {
        let answer: unknown;
        const key = request.headers[IDEMPOTENCY_HEADER];
        const upload = streamed ? uploadOf(request) : undefined;
        if (upload === null && bodySchema !== undefined)
          request.body = validate(bodySchema, 'body', request.body);
        if (operation.idempotent !== true || key === undefined) {
          answer = await handler(toCall(request, reply, RANDOM, upload));
        } else {
          const once: Once = async (body, work) => {
            const { method, url } = request;
            const same = { caller: subjectOf(request), key: String(key), request: { method, url, body } };
            const done = await idempotency.run(same, work);
            if (done.replayed) reply.header(REPLAYED_HEADER, 'true');
            return done.answer as never;
          };
          // Whether two uploads are the same is known only when all of the body has arrived: the handler says it.
          answer = upload
            ? await handler(toCall(request, reply, RANDOM, upload, once))
            : await once(request.body, async (ids) => handler(toCall(request, reply, ids, upload)));
        }
        if (status === 204) return reply.code(204).send();
        if (status !== 200) reply.code(status);
        if (response.contentType !== undefined) reply.type(contentTypeOf(response.contentType));
        return answer;
      },
    };
    if (!streamed) {
      scope.route(route);
      return;
    }
    // Its own scope, for its body parsers.
    void scope.register((own, _options, done) => {
      acceptUploads(own, operation);
      own.route(route);
      done();
    });
  }
}

type Once = Call<Operation>['once'];

function toCall(
  request: FastifyRequest,
  reply: FastifyReply,
  ids: IdGenerator,
  upload: Upload | null | undefined,
  once: Once = async (_content, work) => await work(ids),
): Call<Operation> {
  // One signal for the whole call: a long poll asks for it with every change that wakes it.
  let signal: AbortSignal | undefined;
  return {
    params: request.params as never,
    query: request.query as never,
    body: (upload === null || upload === undefined ? request.body : undefined) as never,
    upload: upload as never,
    principal: request.principal as never,
    caller: request.caller as never,
    operator: request.operator as never,
    runner: request.runner as never,
    ids,
    once,
    request,
    reply,
    abortSignal: () => (signal ??= abortSignalOf(reply, request.server.closing)),
  };
}

function validatorOf(
  schema: TSchema,
  httpPart: string | undefined,
  url: string,
): ReturnType<typeof requestValidator> {
  const validator = requestValidator(schema, httpPart as 'body');
  if (httpPart !== 'params' || (schema as { refusal?: number }).refusal === 400) return validator;
  // A malformed name in the path is a 404, as an unknown one is.
  const code = pathCodes(url).at(-1);
  return (data) => {
    const result = validator(data);
    return 'error' in result ? { error: new ApiError(404, result.error.message, code && { code }) } : result;
  };
}

const contentTypeOf = (type: string): string => (type.startsWith('text/') ? `${type}; charset=utf-8` : type);

export function routeNotFound(request: FastifyRequest, reply: FastifyReply): void {
  const path = request.url.split('?', 1)[0]?.slice(0, 200);
  const refusal = notFound(`no such route: ${request.method} ${path}`, 'route_not_found');
  void reply.code(404).send(errorBody(refusal, request.id));
}
