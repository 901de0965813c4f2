// A tool in JavaScript: a plain function of the world in `wit/`. What is thrown is the tool's error.

export function slug(title, maxLength) {
  const words = title.toLowerCase().match(/[a-z0-9]+/g);
  if (!words) throw "the title has no letters or digits";
  return words.join("-").slice(0, maxLength ?? 60).replace(/-$/, "");
}
