// Requests to the server. Every refusal becomes an Error with the server's message.

const RETRIES = 5;

export async function getJson(path) {
  const response = await reached(fetch(path));
  if (!response.ok) throw await refusal(response);
  return response.json();
}

export async function translate(fields, signal) {
  const response = await post(fields, signal);
  return response.json();
}

// Calls `take` with each line of the stream.
export async function translateStream(fields, signal, take) {
  const response = await post({ ...fields, stream: true }, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reached(reader.read());
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const table = JSON.parse(line);
      if (table.error) throw new Error(table.error);
      take(table);
      if (table.done) return;
    }
  }
  throw new Error("the connection was closed before the translation was complete");
}

async function post(fields, signal) {
  for (let attempt = 0; ; attempt++) {
    const options = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(fields) };
    const response = await reached(fetch("translate", { ...options, signal }));
    if (response.ok) return response;
    if (response.status !== 429 || attempt === RETRIES) throw await refusal(response);
    await pause(1000 * Number(response.headers.get("retry-after") ?? 1), signal);
  }
}

// Browsers report a lost connection as a TypeError, each in its own words.
function reached(promise) {
  return promise.catch((error) => {
    throw error instanceof TypeError ? new Error("the server cannot be reached") : error;
  });
}

async function refusal(response) {
  const table = await response.json().catch(() => ({}));
  return new Error(table.error ?? `the server answered ${response.status}`);
}

function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("stopped", "AbortError"));
    });
  });
}
