// The OpenAPI description as a page.

const description = await (await fetch("openapi.json")).json();

function made(tag, ...content) {
  const element = document.createElement(tag);
  element.append(...content);
  return element;
}

function resolved(schema) {
  if (schema?.$ref) return description.components.schemas[schema.$ref.split("/").pop()];
  return schema ?? {};
}

function kind(schema) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.enum) return schema.enum.join(" | ");
  if (schema.const) return schema.const;
  const any = schema.anyOf ?? schema.oneOf;
  if (any) return any.map(kind).filter((name) => name !== "null").join(" or ");
  if (schema.type === "array") return `list of ${kind(schema.items ?? {}).replace(/^list|$/, (end) => (end ? "lists" : "s"))}`;
  return schema.type ?? "any";
}

function fields(schema) {
  const table = document.createElement("table");
  for (const [name, field] of Object.entries(schema.properties ?? {})) {
    const needed = schema.required?.includes(name);
    const fallback = field.default === undefined || field.default === null ? "" : ` (default ${JSON.stringify(field.default)})`;
    const row = table.insertRow();
    const head = made("th", made("code", name));
    head.scope = "row";
    row.append(head, made("td", kind(field)), made("td", (field.description ?? "") + (needed ? " (required)" : fallback)));
  }
  const scroll = made("div", table);
  scroll.className = "scroll";
  return scroll;
}

function example(method, path, schema) {
  const body = schema?.examples?.[0];
  const where = new URL(path.slice(1), document.baseURI).href;
  if (method === "get") return made("pre", made("code", `curl ${where}`));
  return made("pre", made("code", `curl ${where} --json '${JSON.stringify(body)}'`));
}

function operation(method, path, about) {
  const verb = made("span", method.toUpperCase());
  verb.className = "method";
  const section = made("section", made("h2", verb, made("code", path)), made("p", about.summary ?? ""));
  const schema = about.requestBody?.content?.["application/json"]?.schema;
  const bodies = schema ? (schema.oneOf ?? [schema]) : [];
  for (const body of bodies) {
    section.append(made("h3", body.title), made("p", body.description ?? ""), fields(body), example(method, path, body));
  }
  if (!bodies.length) section.append(example(method, path));
  for (const [status, answer] of Object.entries(about.responses)) {
    const schema = answer.content?.["application/json"]?.schema ?? {};
    if (status === "200") {
      for (const shape of schema.anyOf ?? [schema.items ?? schema]) {
        const table = resolved(shape);
        if (table.properties) section.append(made("h3", `answer: ${table.title}`), fields(table));
      }
    } else if (status !== "422" || bodies.length) {
      section.append(made("p", made("code", status), ` ${answer.description}`));
    }
  }
  return section;
}

document.getElementById("operations").append(
  ...Object.entries(description.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, about]) => operation(method, path, about)),
  ),
);
document.documentElement.dataset.ready = "";
