import { openApiDocument, operations, type OpenApiPlane, unavailable } from '@releap/contract';
import { queryOne, statement, type Database } from '@releap/database';
import type { Planes } from '../../platform/http/planes.ts';
import type { Regions } from '../../fleet/regions/regions.ts';

const READY = statement<{ n: number }>(
  'health-ready',
  `select 1 as n from runners where status = 'online' and ready and draining_since is null limit 1`,
);
const REACHABLE = statement<{ n: number }>('ready-database', 'select 1 as n');
/** Shortest time between two queries, for any number of requests. */
const HEALTH_CACHE_MS = 250;

export function serviceRoutes(
  planes: Planes,
  {
    database,
    draining,
    publicUrl,
    regions,
  }: { database: Database; draining: AbortSignal; publicUrl: string | undefined; regions: Regions },
): void {
  const documentWith = (toolboxUrls: readonly string[], plane?: OpenApiPlane) =>
    openApiDocument({
      toolboxUrls,
      ...(plane === undefined ? {} : { plane }),
      ...(publicUrl === undefined ? {} : { serverUrl: publicUrl }),
    });
  const refuseDraining = (): void => {
    if (draining.aborted) throw unavailable('the server is stopping');
  };
  let document = { of: '', content: documentWith([]) };
  const others = new Map<OpenApiPlane, ReturnType<typeof openApiDocument>>();
  planes.public.operation(operations.getOpenApi, async ({ query }) => {
    const { plane = 'api' } = query;
    if (plane !== 'api') {
      const made = others.get(plane) ?? documentWith([], plane);
      others.set(plane, made);
      return made;
    }
    // It is made again when the regions have changed, and served without a database too.
    const active = await regions.active().catch(() => undefined);
    if (active !== undefined) {
      const urls = active
        .toSorted((a, b) => Number(b.is_default) - Number(a.is_default))
        .flatMap((region) => region.toolbox_proxy_url ?? []);
      const of = urls.join(' ');
      if (of !== document.of) document = { of, content: documentWith([...new Set(urls)]) };
    }
    return document.content;
  });

  planes.public.operation(operations.getLiveness, () => ({ status: 'ok' as const }));
  planes.public.operation(operations.getReadiness, async () => {
    refuseDraining();
    try {
      await queryOne(database.pool, REACHABLE);
    } catch {
      throw unavailable('the database cannot be reached');
    }
    return { status: 'ok' as const };
  });

  let cached: { until: number; ready: Promise<boolean> } | undefined;
  planes.public.operation(operations.getHealth, async () => {
    refuseDraining();
    const now = performance.now();
    if (cached === undefined || cached.until <= now) {
      cached = {
        until: now + HEALTH_CACHE_MS,
        ready: queryOne(database.pool, READY).then((row) => row !== undefined),
      };
    }
    let ready: boolean;
    try {
      ready = await cached.ready;
    } catch {
      cached = undefined;
      throw unavailable('the database cannot be reached');
    }
    // Only a positive result is cached, so that waiting clients see the start at once.
    if (!ready) cached = undefined;
    if (!ready) throw unavailable('no host is connected and ready yet, and not being drained');
    return { status: 'ok' };
  });
}
